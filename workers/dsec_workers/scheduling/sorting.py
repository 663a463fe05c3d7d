"""Sorting out: who may start some day, in classes of gangs that are alike, and a reason for each that never will."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling import reasons
from dsec_workers.scheduling.cost import overhead_seconds
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.room import View, view_of
from dsec_workers.scheduling.shapes import member_shape
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot
from dsec_workers.scheduling.time_sharing import level_of, lift_due
from dsec_workers.scheduling.trial import least_shape
from dsec_workers.scheduling.withheld import Withholding


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What tells a gang apart from others of its kind for the length of a cycle."""

    parent: str | None = None
    backing_off_until: float | None = None
    leaving_for: str | None = None
    level: int = 0
    never_evicted_by: tuple[str, ...] = ()
    binding: tuple[int, ...] = ()
    ordered: str | None = None


NOTHING = Apart()


class Sorting:
    """The gangs that are due, at `rows` of the memory's line: `queue` in `classes`, and those that are `refused`."""

    def __init__(
        self,
        snapshot: Snapshot,
        due: Sequence[QueuedGang],
        rows: Ints,
        quota: Quota,
        policy: Policy,
        now: float,
        memory: Memory,
    ) -> None:
        self.snapshot, self.quota, self.policy, self.now = snapshot, quota, policy, now
        self.memory, self.line = memory, memory.line
        self.refused: list[tuple[QueuedGang, Reason]] = []
        self._withholding = Withholding(snapshot.fleet, snapshot.withheld, policy, now)
        self.lifted: set[str] = set()
        """Gangs at the first level by their one lift."""
        self._everything: dict[str, View] = {}
        """Per resource pool, the empty cluster."""
        self._holdable: dict[tuple[str, Shape], bool] = {}
        self._spared_by: dict[str, list[str]] = {}
        if self.line.sparing:
            present = set(rows.tolist())
            for evicted, others in self.line.sparing.items():
                for run_id in others if self.line.seen.row_of(evicted) in present else ():
                    self._spared_by.setdefault(run_id, []).append(evicted)
        memory.judge(snapshot, quota.teams)
        self.limited = np.array([team.user_devices is not None for team in quota.teams], bool)
        """Teams in which it matters who a gang is of."""
        self._sort_out(due, rows)

    def _sort_out(self, due: Sequence[QueuedGang], rows: Ints) -> None:
        """Classes of the gangs that may start some day; the others are refused with a reason each."""
        line, quota, verdicts = self.line, self.quota, self.memory.verdicts
        odd = self._told_apart(rows)
        kinds = line.kind[rows]
        refusing = np.zeros(len(line.kinds) + 1, bool)
        person_of = np.zeros(len(line.kinds) + 1, bool)
        for number in np.unique(kinds).tolist():
            if number not in verdicts:
                kind = line.kinds[number]
                verdicts[number] = self._never(kind.team, kind.request)
            if verdicts[number] is not None:
                refusing[number] = True
            else:
                person_of[number] = self.limited[quota.number[line.kinds[number].team]]
        persons = np.where(person_of[kinds], line.person[rows] + 1, 0)
        keys = kinds << 32 | persons
        no = refusing[kinds]
        apart: dict[object, tuple[GangClass, list[int]]] = {}
        for place in np.flatnonzero(odd).tolist():
            verdict, found = self._apart(due[place], int(kinds[place]), int(persons[place]))
            no[place] = verdict is not None
            if verdict is not None:
                self.refused.append((due[place], verdict))
                continue
            if found is None:
                odd[place] = False  # like any other of its kind, after all
            else:
                if found not in apart:
                    apart[found] = self._odd_class(due[place], found), []
                apart[found][1].append(place)
        for place in np.flatnonzero(no & ~odd).tolist():
            verdict = verdicts[int(kinds[place])]
            if verdict is not None:
                self.refused.append((due[place], verdict))
        for gang, _ in self.refused:
            quota.forget(gang.team, gang.request.devices)
        kept = np.flatnonzero(~no)
        number_of = np.cumsum(~no) - 1
        self.queue = [due[place] for place in kept.tolist()]
        self.rows: Ints = rows[kept]
        plain = np.flatnonzero(~no & ~odd)
        distinct, first, inverse = np.unique(keys[plain], return_index=True, return_inverse=True)
        known = self.memory.classes
        classes = [
            known.get(key) or self._class(key, due[place])
            for key, place in zip(distinct.tolist(), plain[first].tolist(), strict=True)
        ]
        starts = number_of[plain[first]].tolist()
        class_of: Ints = np.full(len(kept), -1, np.int64)
        class_of[number_of[plain]] = inverse.reshape(-1)
        for kind, places in apart.values():
            class_of[number_of[places]] = len(classes)
            classes.append(kind)
            starts.append(int(number_of[places[0]]))
        order = np.argsort(np.array(starts, np.int64), kind="stable")
        renumbered = np.empty(len(classes), np.int64)
        renumbered[order] = np.arange(len(classes))
        self.classes: list[GangClass] = [classes[index] for index in order.tolist()]
        self.class_of: Ints = renumbered[class_of] if len(classes) else class_of

    def _told_apart(self, rows: Ints) -> Bools:
        """Which of the due something outside them may tell apart from others of their kind."""
        line, snapshot = self.line, self.snapshot
        odd = line.child | (line.not_before > self.now)
        if self.policy.time_sharing:
            odd = odd | (line.attained > 0)
        if self._withholding.orders:
            odd = odd | (line.devices > 0)
        self.leaving_for = {gang.evicting_for for gang in snapshot.gangs() if gang.evicting and gang.evicting_for}
        for run_id in (*snapshot.overrides, *self.leaving_for, *self._spared_by):
            row = line.seen.row_of(run_id)
            if row is not None:
                odd[row] = True
        return np.asarray(odd[rows], bool)

    def _apart(self, gang: QueuedGang, kind: int, person: int) -> tuple[Reason | None, object]:
        """Why it can never start, or what tells it apart; neither where it is like any other of its kind."""
        override = self.snapshot.overrides.get(gang.run_id)
        if override is None:
            verdict = self.memory.verdicts[kind]
        elif override.admit:
            verdict = self._never(gang.team, gang.request, ordered=True)
        else:
            verdict = reasons.held_back(override.text)
        if verdict is not None:
            return verdict, None
        apart = Apart(
            parent=gang.parent_run_id if gang.parent_run_id in self.snapshot.slots else None,
            backing_off_until=gang.not_before if gang.not_before is not None and gang.not_before > self.now else None,
            leaving_for=gang.run_id if gang.run_id in self.leaving_for else None,
            level=level_of(gang, self.policy, self.now),
            never_evicted_by=tuple(sorted(self._spared_by.get(gang.run_id, ()))),
            binding=self._binding(gang) if self._withholding.orders and gang.request.devices else (),
            ordered=gang.run_id if override is not None else None,
        )
        if apart.level == 0 and lift_due(gang, self.policy, self.now):
            self.lifted.add(gang.run_id)
        return None, None if apart == NOTHING else (kind, person, apart)

    def _class(self, key: int, gang: QueuedGang) -> GangClass:
        """The class of a kind that nothing tells apart, with nobody in it yet."""
        found = self.memory.classes[key] = self._new_class(gang, NOTHING)
        return found

    def _odd_class(self, gang: QueuedGang, key: object) -> GangClass:
        assert isinstance(key, tuple)
        return self._new_class(gang, key[2])

    def _new_class(self, gang: QueuedGang, apart: "Apart") -> GangClass:
        pool, team = self.snapshot.fleet.pool_of(gang.request), self.quota.number[gang.team]
        return GangClass(
            request=gang.request,
            team=team,
            pool=self._withholding.pool(pool, apart.binding),
            whole=pool if apart.binding else None,
            withheld_by="; ".join(self._withholding.orders[number].text for number in apart.binding),
            ordered=apart.ordered is not None,
            least=least_shape(gang.request),
            member=member_shape(gang.request),
            asks=self.memory.asked_before(gang.request, pool.label),
            gangs=[],
            backing_off_until=apart.backing_off_until,
            parent=apart.parent,
            user=gang.created_by if self.limited[team] else "",
            level=apart.level,
            evicted_for=gang.evicted_for,
            never_evicted_by=apart.never_evicted_by,
            leaving_for=apart.leaving_for is not None,
            special=apart.parent is not None
            or apart.backing_off_until is not None
            or apart.leaving_for is not None
            or bool(apart.binding)
            or not gang.request.devices,
        )

    def _binding(self, gang: QueuedGang) -> tuple[int, ...]:
        """The orders that keep devices from it."""
        request = gang.request
        overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, self.policy)
        worth = self.policy.conditional_worth * overhead + request.grace_seconds if request.evictable else None
        return self._withholding.binding(
            team=gang.team, tags=gang.tags, max_runtime_seconds=request.max_runtime_seconds, worth_seconds=worth
        )

    def _never(self, name: str, request: GangRequest, *, ordered: bool = False) -> Reason | None:
        """The first reason that waiting does not cure (a freeze included, which an operator has to lift)."""
        fleet, frozen, quota = self.snapshot.fleet, self.snapshot.frozen, self.quota
        team = self.snapshot.teams.get(name)
        if team is not None and request.priority > team.highest_priority:
            return reasons.above_highest_priority(request, team)
        if team is None:
            return reasons.unknown_team(name, self.snapshot.teams)
        pool = fleet.pool_of(request)
        least = request.min_nodes or request.nodes
        shape = least_shape(request)
        if request.devices:
            if pool.label not in self._everything:
                self._everything[pool.label] = view_of(fleet, pool.mask, Hosts.empty(fleet))
            if (pool.label, shape) not in self._holdable:
                self._holdable[pool.label, shape] = fits(fleet, self._everything[pool.label], shape)
            if not pool.classes or not self._holdable[pool.label, shape]:
                return reasons.never_fits(fleet, pool, self._everything[pool.label], request, shape)
            ceiling, devices = quota.highest(quota.number[name], request), least * request.devices_per_node
            if devices > ceiling and not ordered:
                return reasons.over_team_limit(request, team, devices, ceiling)
        if ordered:
            return None
        if frozen.everything is not None:
            return reasons.frozen(frozen.everything, "the pool")
        if name in frozen.teams:
            return reasons.frozen(frozen.teams[name], f"team {name}")
        return None
