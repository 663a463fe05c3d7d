"""How much of a card a request is given when it leaves that to us: the tier rule of `sharing: auto`.

A whole card first. Only a request that says it needs less than a quarter of the card's memory may be given a slice, and
a part of a card's time only where slices do not fit. Whoever names a share gets that share and nothing else.
"""

from dsec_blocks.model.requests import GangRequest, Sharing

SLICE_BELOW = 0.25
"""Of the card's memory."""


def tiers(request: GangRequest, card_bytes: int) -> tuple[Sharing, ...]:
    """What a request that leaves it open may be given on cards of that memory, in the order in which it is tried."""
    small = (
        request.nodes == 1
        and request.devices_per_node == 1
        and request.gpu_memory_bytes is not None
        and request.gpu_memory_bytes < SLICE_BELOW * card_bytes
    )
    return (Sharing.WHOLE, Sharing.SLICE, Sharing.TIME_SLICE) if small else (Sharing.WHOLE,)
