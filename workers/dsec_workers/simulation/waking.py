"""When a plan may say something else though nothing has happened since the last: what time alone changes."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from math import inf

from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang
from dsec_workers.scheduling.shadow import expected_runtime
from dsec_workers.scheduling.time_sharing import attained
from dsec_workers.simulation.overheads import Overheads


def may_grow(gang: RunningGang) -> bool:
    """Whether it has fewer members than it would like, and none of them is on its way."""
    least, present = gang.request.min_nodes, len(gang.placement.members)
    return least is not None and present < gang.request.nodes and not gang.evicting and not gang.promised


def levels_in_line(
    waiting: Iterable[QueuedGang], policy: Policy, now: float, *, some_are_new: bool
) -> tuple[int, list[float]]:
    """The smallest level of those who wait, and when the next of them are lifted."""
    levels, factor = policy.level_device_seconds, policy.lift_factor
    lowest, lifts = (0 if some_are_new else len(levels)), []
    for gang in waiting:
        had, request = gang.attained_seconds, gang.request
        lift = inf
        if had > 0 and not gang.lifted:
            since = gang.eligible_at if gang.waiting_since is None else gang.waiting_since
            lift = since + factor * had / max(1, request.devices)
            if lift > now:
                lifts.append(lift)
        if lowest and (had <= 0 or lift <= now or request.kind is not Kind.TRAINING or not request.evictable):
            lowest = 0
        elif lowest:
            lowest = min(lowest, bisect_right(levels, had))
    return lowest, lifts


def changes_of(
    gang: RunningGang, policy: Policy, overheads: Overheads, now: float, *, attempt: int, began: float, lowest: int
) -> Iterator[float]:
    """Times to come at which this gang may be asked what it may not be asked now.

    `lowest` is the smallest level of those who wait: one that is not below it makes no difference.
    """
    settled = min(gang.started_at + policy.min_run_seconds, began + overheads.first_commit(attempt=attempt))
    if gang.first_commit_at is None and settled > now:
        yield settled
    resizes = policy.resizing and gang.request.min_nodes is not None
    if (policy.consolidation or resizes) and gang.moved_at is not None:
        settled_until = gang.moved_at + policy.move_interval_seconds
        if settled_until > now:
            yield settled_until
    if policy.resizing and may_grow(gang) and gang.request.max_runtime_seconds is None and gang.expected_seconds:
        # Once it outlives what is expected of it, more is expected.
        yield gang.started_at + expected_runtime(
            gang.request, policy, now - gang.started_at, learned=gang.expected_seconds
        )
    if policy.time_sharing:
        had, levels = attained(gang, now), policy.level_device_seconds
        level = max(bisect_right(levels, had), lowest)
        if level < len(levels):
            yield now + (levels[level] - had) / max(1, len(gang.placement.devices))
