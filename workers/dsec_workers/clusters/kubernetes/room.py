"""Waiting until what was reserved is really free: a kubelet admits no pod to a card that another pod still has."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.occupancy import Requests
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

_POLL_SECONDS = 1.0


async def until_free(
    order: LaunchOrder,
    view: GangView,
    needs: Sequence[Requests],
    *,
    supply: Supply,
    overdrawn: Callable[[], str | None],
    changed: asyncio.Event,
    clock: Clock,
) -> None:
    """Return when each member's node has what it `needs`; `changed` is set whenever that may have changed.

    `overdrawn` says which quota has no room for the pods yet: it counts pods that have ended a moment longer.

    Raises `ClusterError` with what is lacking: at once where waiting cannot help, else after the start timeout.
    """
    deadline = clock.monotonic() + order.start_timeout_seconds
    places = deque(zip((member.node for member in order.placement.members), needs, strict=True))
    while True:
        if view.is_stopped:
            raise ClusterError("it was stopped before it could start")
        for member in order.placement.members:
            if not view.jobs and not view.pods and (closed := supply.closed(member.node)):
                raise ClusterError(closed)
        unknown = supply.unknown(needs)
        if unknown is not None:
            raise ClusterError(unknown)
        why = _lacking(order.key, places, supply) or overdrawn()
        if why is None:
            return
        if clock.monotonic() > deadline:
            raise ClusterError(why)
        changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await changed.wait()


def _lacking(key: GangKey, places: deque[tuple[str, Requests]], supply: Supply) -> str | None:
    """What one place lacks, which then stands first: the next look, at the next change of any pod of the cluster, most
    often needs no other. Looking at all each time is places x pods for a gang that waits for thousands to leave.
    """
    for _ in range(len(places)):
        why = supply.lacking(key, *places[0])
        if why is not None:
            return why
        places.rotate(-1)
    return None
