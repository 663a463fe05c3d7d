"""What a pool knew when it was captured, for a replay that goes on from there.

Shares, promises and orders have a past that no trace tells: who was evicted for whom, what a gang has had, what is
frozen, drained or reserved, what is kept for the head of line. Times are seconds from the beginning of the trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsec_workers.scheduling.consolidation import COMING
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang, Snapshot

_RUNNING = ("submitted_at", "started_at", "first_commit_at", "last_commit_at", "conditional_until", "moved_at")
_WAITING = ("submitted_at", "eligible_at", "not_before", "waiting_since")


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """A snapshot and the records of those who wait, by run id."""

    snapshot: Snapshot
    waiting: Mapping[str, QueuedGang]


def beginning(snapshot: Snapshot, queue: Sequence[QueuedGang], *, zero: float) -> Beginning:
    """The same with times that count from `zero` (seconds since the epoch)."""
    running = [_moved(gang, _RUNNING, zero) for gang in snapshot.gangs()]
    shadows = [_moved(shadow, ("start", "since"), zero) for shadow in snapshot.shadows]
    withheld = tuple(_moved(order, ("start", "end"), zero) for order in snapshot.withheld)
    return Beginning(
        snapshot=snapshot.apply(updated=running, shadows=shadows, withheld=withheld),
        waiting={gang.run_id: _moved(gang, _WAITING, zero) for gang in queue},
    )


def on_their_way(snapshot: Snapshot) -> dict[str, RunningGang]:
    """Run id of each gang that leaves to go on at once → its attempt to come."""
    found = {gang.run_id.removesuffix(COMING): gang for gang in snapshot.gangs() if gang.run_id.endswith(COMING)}
    return {run_id: gang for run_id, gang in found.items() if run_id in snapshot.slots}


def to_leave(snapshot: Snapshot, policy: Policy, now: float) -> list[str]:
    """Run ids of gangs that have to be asked to leave now, so that a drained node is empty and a window free in time.

    As the worker asks (`lifecycle.orders.must_leave`): at the latest moment that leaves room for the checkpoint and the
    whole grace, and not those whose enforced max_runtime ends in time.
    """
    return [gang.run_id for gang, at in _askings(snapshot, policy, now) if at <= now]


def askings_after(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[float]:
    """Times to come at which `to_leave` names somebody, or at which an order begins or ends."""
    yield from (at for _, at in _askings(snapshot, policy, now) if at > now)
    for order in snapshot.withheld:
        yield from (at for at in (order.start, order.end) if now < at < float("inf"))


def _askings(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[tuple[RunningGang, float]]:
    for order in snapshot.withheld:
        for gang in snapshot.gangs() if order.end > now else ():
            if gang.evicting or gang.promised or order.devices.isdisjoint(gang.placement.devices):
                continue
            if order.conditional and (order.entitled(gang.team, gang.tags) or not gang.request.evictable):
                continue
            limit = gang.request.max_runtime_seconds
            if limit is not None and gang.started_at + limit <= order.start:
                continue
            checkpoint = policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
            yield gang, order.start - checkpoint - gang.request.grace_seconds


def _moved(record: Any, names: Sequence[str], zero: float) -> Any:
    """The record with these times, where it has them, counted from `zero`."""
    times = {name: getattr(record, name) for name in names}
    return replace(record, **{name: at - zero for name, at in times.items() if at is not None})
