"""The ledger's gangs as the planner's records. Light to import: `dsec queue` plans with them too, without Prefect."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from dsec_blocks.ledger import Arrivals, Holding
from dsec_blocks.ledger.arrivals import request_of
from dsec_blocks.model.bulk import builder
from dsec_blocks.model.durations import seconds_left
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_workers.scheduling.consolidation import COMING, to_come
from dsec_workers.scheduling.shapes import MemberShape, member_shape
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang

LONGEST_PAUSE_SECONDS = 300.0
"""Before a gang whose start failed is tried again, or asked for again where the server had put it off."""
NOBODY_ARRIVED = Arrivals()
_queued, _running = builder(QueuedGang), builder(RunningGang)


def queued(
    gang: Gang,
    evicted_for: tuple[str, ...] = (),
    seconds_saved: tuple[tuple[str, float], ...] = (),
    *,
    now: float = inf,
) -> QueuedGang:
    """The waiting gang as the planner sees it; `evicted_for` are the gangs it was ever evicted for.

    Whoever waits has been due, and no pause of ours is longer than the longest: a clock that went back to `now` must
    not hold a gang for as long as it went back.
    """
    not_before, eligible_at = gang.not_before, gang.eligible_at
    return _queued(
        gang.run_id,
        gang.team,
        gang.request,
        gang.submitted_at,
        eligible_at if eligible_at < now else now,
        gang.attempt,
        gang.evictions,
        None if not_before is None else min(not_before, now + LONGEST_PAUSE_SECONDS),
        gang.parent_run_id,
        gang.checkpoint_seconds,
        gang.restart_seconds,
        seconds_saved,
        gang.created_by,
        gang.tags,
        evicted_for,
        gang.attained_seconds,
        None if gang.expected_seconds is None else _expected(gang),
        gang.waiting_since,
        gang.lifted,
    )


def running_gang(
    gang: Gang,
    holdings: Sequence[Holding],
    *,
    for_run: Mapping[str, str | None],
) -> RunningGang:
    """The gang that holds devices (or is promised some) as the planner sees it.

    A gang that is leaving may have released its devices already: its placement then shows what it still holds.
    """
    assert gang.placement is not None
    run_id, attempt, placement = gang.run_id, gang.attempt, gang.placement
    mine = [holding for holding in holdings if holding.attempt == attempt and holding.run_id == run_id]
    if len(mine) < sum(len(member.devices) for member in placement.members):
        left = {holding.device for holding in mine}
        members = tuple(
            replace(member, devices=tuple(uuid for uuid in member.devices if uuid in left))
            for member in placement.members
        )
        placement = replace(placement, members=members)
    started_at = gang.launched_at or gang.admitted_at or gang.eligible_at
    return _running(
        run_id=gang.run_id,
        team=gang.team,
        request=gang.request,
        placement=placement,
        submitted_at=gang.submitted_at,
        started_at=started_at,
        first_commit_at=gang.first_commit_at,
        last_commit_at=gang.last_commit_at,
        checkpoint_seconds=gang.checkpoint_seconds,
        restart_seconds=gang.restart_seconds,
        has_on_evict=gang.has_on_evict,
        evictions=gang.evictions,
        evicting=gang.state is GangState.EVICTING,
        evicting_for=for_run.get(gang.run_id),
        promised=any(holding.turn > 0 for holding in mine),
        conditional_until=gang.conditional_until,
        moved_at=None,
        created_by=gang.created_by,
        tags=gang.tags,
        attained_seconds=gang.attained_seconds,
        expected_seconds=_expected(gang),
    )


def _expected(gang: Gang) -> float | None:
    """Seconds that its next (or present) attempt is expected to last."""
    expected, devices = gang.expected_seconds, gang.request.devices
    if expected is None or not gang.attained_seconds or not devices:
        return expected
    return seconds_left(expected, gang.attained_seconds / devices)


def records_of(gang: Gang, holdings: Sequence[Holding], *, for_run: Mapping[str, str | None]) -> Iterator[RunningGang]:
    """The attempt that holds devices, and the next one, where a place is reserved for it already."""
    if gang.placement is None or (gang.state not in HOLDING_STATES and gang.resumes_at is None):
        return
    record = running_gang(gang, holdings, for_run=for_run)
    if gang.state in HOLDING_STATES:
        yield record
    if gang.resumes_at is not None:
        yield to_come(record, gang.resumes_at, since=record.started_at)


def moved(record: RunningGang, at: float) -> RunningGang:
    """The record of a gang that made way at that time; its next attempt counts from then."""
    return replace(record, moved_at=at, started_at=at if record.run_id.endswith(COMING) else record.started_at)


def evicted_lately(made_way: Iterable[tuple[str, str, float, str]], *, since: float) -> dict[str, int]:
    """By team, how many evictions others have cost it since then; a gang that left to grow was evicted by nobody.

    `made_way` are (run id, team, time of the notice, for which run).
    """
    return dict(Counter(team for run_id, team, at, for_run in made_way if at >= since and for_run != run_id))


def seen(arrivals: Arrivals) -> dict[MemberShape, float]:
    """How often members of each shape have arrived lately."""
    found: dict[MemberShape, float] = {}
    for kind, weight in arrivals.weights().items():
        shape = _shape_of(kind)
        found[shape] = found.get(shape, 0.0) + weight
    return found


@lru_cache(maxsize=4096)
def _shape_of(kind: str) -> MemberShape:
    return member_shape(request_of(kind))
