"""How much of a card a request is given when it leaves that to us: the tier rule of `sharing: auto`.

A whole card first. Only a request that says it needs less than a quarter of the card's memory may be given a slice, and
a part of a card's time only where slices do not fit. Whoever names a share gets that share and nothing else.
"""

from dsec_blocks.model.requests import GangRequest, Sharing

SLICE_BELOW = 0.25
"""Of the card's memory."""


def tiers(request: GangRequest, card_bytes: int, *, slices: bool, time_slices: bool) -> tuple[Sharing, ...]:
    """What the request may be given on cards of that memory, in the order in which it is tried.

    `slices` and `time_slices` tell what the cluster can carry out.
    """
    if request.sharing is not Sharing.AUTO or request.share is not None:
        named = request.sharing if request.sharing is not Sharing.AUTO else Sharing.SLICE
        able = {Sharing.WHOLE: True, Sharing.SLICE: slices, Sharing.TIME_SLICE: time_slices}[named]
        return (named,) if able else ()
    small = (
        request.nodes == 1
        and request.devices_per_node == 1
        and request.gpu_memory_bytes is not None
        and request.gpu_memory_bytes < SLICE_BELOW * card_bytes
    )
    found = [Sharing.WHOLE]
    if small and slices:
        found.append(Sharing.SLICE)
    if small and time_slices:
        found.append(Sharing.TIME_SLICE)
    return tuple(found)
