"""What a plan is asked with: one way from the records to `plan()`'s arguments, for all who plan.

The leader, an onlooker (`dsec queue`, `dsec what-if`) and an incident file each come by the records their own way; what
is made of them is made here, so that whoever only asks is answered what the leader would do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any

from dsec_blocks.ledger import Arrivals, Ledger
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.admission_checks import AdmissionChecks
from dsec_workers.lifecycle.data_distance import NOTHING_KNOWN, DataDistance
from dsec_workers.lifecycle.mirror import View
from dsec_workers.lifecycle.orders import Orders
from dsec_workers.lifecycle.records import (
    LONGEST_PAUSE_SECONDS,
    NOBODY_ARRIVED,
    evicted_lately,
    moved,
    queued,
    seen,
)
from dsec_workers.scheduling.consolidation import COMING
from dsec_workers.scheduling.decisions import Hold, Shadow
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang, Snapshot, build_snapshot

MadeWay = Sequence[tuple[str, str, float, str]]
"""(run id, team, time of the notice, for which run) of each gang that made way, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a plan depends on, as records."""

    pool: str
    now: float
    policy: Policy
    nodes: Sequence[Node]
    view: View
    teams: Mapping[str, Team]
    usage: Mapping[str, float]
    shadows: Sequence[Mapping[str, Any]] = ()
    orders: Orders = field(default_factory=Orders)
    made_way: MadeWay = ()
    arrivals: Arrivals = NOBODY_ARRIVED
    failures: Mapping[str, float] = field(default_factory=dict)
    """Node → how much has failed there lately, faded to `now`."""


def facts_of(
    ledger: Ledger, pool: str, *, now: float, policy: Policy, nodes: Sequence[Node], view: View, orders: Orders
) -> Facts:
    """What else the ledger knows, beside the gangs in `view`."""
    half_life, weights = policy.usage_half_life_seconds, policy.model_weights
    window = remembered_seconds(policy)
    with ledger.reading():
        return Facts(
            pool=pool,
            now=now,
            policy=policy,
            nodes=nodes,
            view=view,
            teams=ledger.teams(pool),
            usage=ledger.decayed_usage(pool, now, half_life_seconds=half_life, model_weights=weights),
            shadows=ledger.shadows(pool),
            orders=orders,
            made_way=ledger.evicted_since(pool, now - window) if window else (),
            arrivals=ledger.arrivals(pool),
            failures=ledger.node_failures(pool, now),
        )


def remembered_seconds(policy: Policy) -> float:
    """How far back the policy asks who made way; 0 where it does not."""
    return max(_window(policy), _interval(policy))


def snapshot_of(facts: Facts, last: Snapshot | None = None) -> Snapshot:
    """What a plan sees of them.

    `last` is an earlier snapshot of the pool: what was made of its nodes and of gangs that are as they were is used
    again. The result is equal in every decision to one that is made from nothing.
    """
    policy, now, orders = facts.policy, facts.now, facts.orders
    window, interval = _window(policy), _interval(policy)
    running: Mapping[str, RunningGang] = facts.view.running
    if window or interval:
        # A run that made way counts as moved, however it did: it is asked at most once in the policy's interval.
        made_way = {run_id: at for run_id, _, at, _ in facts.made_way}
        running = {
            name: gang if (at := made_way.get(name.removesuffix(COMING))) is None else moved(gang, at)
            for name, gang in running.items()
        }
    others: dict[str, Any] = {
        "teams": facts.teams,
        "shadows": [Shadow.from_json(row) for row in facts.shadows],
        "usage": facts.usage,
        "frozen": orders.frozen,
        "withheld": orders.withheld,
        "overrides": orders.overrides,
        "evicted_lately": evicted_lately(facts.made_way, since=now - window) if window or interval else {},
        "seen": seen(facts.arrivals),
        "failures": facts.failures,
    }
    nodes = tuple(sorted(facts.nodes, key=lambda node: node.name))
    if last is None or last.pool != facts.pool or last.fleet.source != nodes:
        return build_snapshot(nodes=nodes, running=list(running.values()), pool=facts.pool, **others)
    slots, before = last.slots, last.running
    changed = [gang for run_id, gang in running.items() if not _is_known(slots, before, run_id, gang)]
    return last.apply(finished=slots.keys() - running.keys(), updated=changed, **others)


_Entry = tuple[Gang, tuple[tuple[str, float], ...], float, QueuedGang, DataDistance]
"""What a record was made of (the gang, and the seconds that data saves it), from when on it holds whatever the time,
the record, and the data that it was last compared with."""
_RUN_ID = attrgetter("run_id")
FEW = 1000


@dataclass
class Line:
    """The waiting as the planner's records; kept from cycle to cycle, it makes only those anew that have changed."""

    _known: dict[str, _Entry] = field(default_factory=dict)
    """By run; of some that wait no more, too."""

    def queue(
        self,
        view: View,
        checks: AdmissionChecks,
        *,
        now: float = inf,
        data: DataDistance = NOTHING_KNOWN,
        refused: Mapping[str, Reason] = {},
        left_out: Collection[str] = (),
    ) -> tuple[list[QueuedGang], list[Hold]]:
        """Who may be planned, and why others may not: those `refused`, and those whom a check keeps out.

        Of those `left_out` nothing is said.
        """
        closed = {**checks.refusals(view.waiting), **refused}
        queue: list[QueuedGang] = []
        held: list[Hold] = []
        known = self._known
        has_gaps = bool(closed or left_out)
        # Everybody who waits, each round: whoever is as it was costs one look.
        for gang, entry in zip(view.waiting, map(known.get, map(_RUN_ID, view.waiting)), strict=True):
            if has_gaps:
                run_id = gang.run_id
                if run_id in closed:
                    held.append(Hold(run_id=run_id, reason=closed[run_id]))
                    continue
                if run_id in left_out:
                    continue
            if entry is None or entry[0] is not gang or entry[2] > now or entry[4] is not data:
                entry = known[gang.run_id] = _entry(gang, entry, view, data, now)
            queue.append(entry[3])
        if len(known) > 2 * len(view.waiting) + FEW:
            waits = set(map(_RUN_ID, view.waiting))
            self._known = {run_id: entry for run_id, entry in known.items() if run_id in waits}
        return queue, held


def _entry(gang: Gang, before: _Entry | None, view: View, data: DataDistance, now: float) -> _Entry:
    inputs = gang.request.inputs
    saved = data.seconds_saved(inputs) if inputs else ()
    if before is not None and before[0] is gang and before[1] == saved and before[2] <= now:
        return (*before[:4], data)
    record = queued(gang, view.evicted_for.get(gang.run_id, ()), saved, now=now)
    holds_from = gang.eligible_at
    if gang.not_before is not None:
        holds_from = max(holds_from, gang.not_before - LONGEST_PAUSE_SECONDS)
    return (gang, saved, inf if holds_from > now else holds_from, record, data)


def _is_known(slots: Mapping[str, int], before: Sequence[RunningGang | None], run_id: str, gang: RunningGang) -> bool:
    slot = slots.get(run_id)
    return slot is not None and (before[slot] is gang or before[slot] == gang)


def _window(policy: Policy) -> float:
    return policy.eviction_window_seconds if policy.evictions_per_team is not None else 0.0


def _interval(policy: Policy) -> float:
    return policy.move_interval_seconds if policy.consolidation or policy.resizing else 0.0
