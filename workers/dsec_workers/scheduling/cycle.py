"""`plan()`: one scheduling cycle, from a snapshot and a queue to decisions.

Sort out what can never start; then, again and again, try the first in order until nobody can start. An admission
changes shares, room and rights, so the order is asked anew after each: the result equals planning one admission at a
time. Every pass of the loop either admits a gang or closes a class of gangs, and classes are reopened only by
admissions that evict, move a shadow or make a team borrow, within a budget. What is then left over is dealt to
elastic gangs, and passers whose time is up are called back for heads of line that start later.
"""

from collections.abc import Sequence

import numpy as np

from dsec_blocks.model.requests import MAX_PRIORITY
from dsec_workers.scheduling.attempts import Attempts, Effect
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Recall, Resize, Shadow
from dsec_workers.scheduling.elastic import deal_surplus, grow
from dsec_workers.scheduling.holds import Holds
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.order import Ages, GangClass, Order
from dsec_workers.scheduling.overtaking import overtaken
from dsec_workers.scheduling.placement import Shape
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.prospects import expecting
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.recalls import call_back
from dsec_workers.scheduling.screening import Screening
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang, Snapshot
from dsec_workers.scheduling.sorting import Sorting
from dsec_workers.scheduling.trial import Trial


def plan(
    snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy, now: float, *, memory: Memory | None = None
) -> Plan:
    """Decide who starts where, who is evicted for it, and why everybody else waits. Times in seconds since the epoch.

    Pure: equal arguments give equal plans, and nothing is changed. Gangs that are not due yet (`eligible_at > now`),
    that hold devices already, or that come after `policy.max_admissions` are not mentioned in the plan. A `memory`
    that is kept from plan to plan makes the next one sooner and nothing else.
    """
    return _Cycle(snapshot, queue, policy, now, memory or Memory()).run()


PATIENCE = 4
"""So many are refused one by one, after each admission anew, before all are looked at together."""
FEW = 64
"""So few classes are tried sooner than looked at together once more."""


class _Cycle:
    """The steps of one call of `plan`."""

    def __init__(
        self, snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy, now: float, memory: Memory
    ) -> None:
        self.policy, self.now = policy, now
        rows, slots = memory.rows(queue), memory.slots(snapshot)
        line = memory.line
        waits = line.eligible <= now
        waits[line.seen.rows_of(snapshot.slots.keys())] = False
        places = np.flatnonzero(waits[rows])
        due, rows = [queue[place] for place in places.tolist()], rows[places]
        asked = np.bincount(line.team[rows], line.devices[rows], minlength=len(line.teams))
        quota = Quota(snapshot, dict(zip(line.teams, asked.tolist(), strict=True)), policy, now, slots=slots)
        self.sorting = Sorting(snapshot, due, rows, quota, policy, now, memory)
        self.queue = self.sorting.queue
        self.classes: list[GangClass] = self.sorting.classes
        rows = self.sorting.rows
        since = (line.returned if policy.time_sharing else line.eligible)[rows]
        behind = overtaken(since, self.sorting.class_of, self.classes, snapshot, slots, policy, now)
        ages = Ages.of(since, behind, line.seniority[rows], policy, now)
        self.order = Order(self.queue, self.classes, self.sorting.class_of, ages, quota, policy, line.run_ids[rows])
        snapshot = self.snapshot = expecting(snapshot, self.classes, policy)
        self.slots = slots
        self.trial = Trial(snapshot, slots, self.queue, quota, policy, now)
        self.attempts = Attempts(self.trial)
        self.screening = Screening(self.order, self.trial)
        self.refusals = 0
        """Attempts that failed since the last admission."""
        self.admits: list[Admit] = []
        self.admitted: dict[str, int] = {}
        self.retries = policy.max_retries

    def run(self) -> Plan:
        """All the steps."""
        self._take_over()
        self._admit_ordered()
        growths: list[Resize] = []
        recalls: list[Recall] = []
        if self._admit_all():
            recalls = self._clear()
            self.admits = deal_surplus(self.trial, self.admits, self._admitted)
            growths = grow(self.trial, self._somebody_waits)
            self.trial.forget_answers()
        heads = {number: self._class(number) for number in self.trial.keepers}
        recalls += call_back(self.trial, self.slots, heads)
        refused = sorted(self.sorting.refused, key=lambda pair: (pair[0].submitted_at, pair[0].run_id))
        others = tuple(Hold(run_id=gang.run_id, reason=reason) for gang, reason in refused)
        holds = Holds(self.order, self.trial, self.screening).all(self._free_by_pool(), others)
        return Plan(
            admits=tuple(self.admits),
            holds=holds,
            shadows=self._shadows(),
            growths=tuple(growths),
            recalls=tuple(recalls),
            lifted=tuple(admit.run_id for admit in self.admits if admit.run_id in self.sorting.lifted),
            policy_version=self.policy.version,
            conditional=dict(self.trial.conditional),
        )

    def _shadows(self) -> tuple[Shadow, ...]:
        uuids, names = self.snapshot.fleet.uuids, self.snapshot.fleet.nodes
        return tuple(
            Shadow(
                run_id=keep.run_id,
                resource_pool=keep.resource_pool,
                start=keep.start,
                devices=tuple(uuids[number] for number in keep.devices.tolist()),
                since=keep.since,
                nodes=() if len(keep.devices) else tuple(names[number] for number in keep.nodes.tolist()),
            )
            for keep in sorted(self.trial.kept, key=lambda k: (k.since, k.run_id))
            if not keep.pledge
        )

    def _take_over(self) -> None:
        """Restore what earlier cycles kept for gangs that still wait."""
        reservations = self.attempts.reservations
        for shadow in sorted(self.snapshot.shadows, key=lambda s: (s.since, s.run_id)):
            number = self._number_of(shadow.run_id)
            if number is not None:
                reservations.restore_shadow(shadow, number, self._class(number))
        for kind in self.classes:
            if kind.leaving_for:
                number = kind.gangs[0]
                run_id = self.queue[number].run_id
                held = np.array(
                    [gang is not None and gang.evicting_for == run_id for gang in self.snapshot.running], bool
                )
                holder = self.snapshot.holder
                mine = (holder >= 0) & held[holder] & (self.snapshot.next_holder < 0) & kind.pool.mask
                if mine.any():
                    reservations.pledge(number, kind, np.flatnonzero(mine))
        reservations.renew_all()
        reservations.kept_moved()

    def _number_of(self, run_id: str) -> int | None:
        """The number of a gang of the queue."""
        row = self.sorting.line.seen.row_of(run_id)
        found = np.flatnonzero(self.sorting.rows == (-1 if row is None else row))
        return int(found[0]) if len(found) else None

    def _class(self, number: int) -> GangClass:
        return self.classes[int(self.order.class_of[number])]

    def _free_by_pool(self) -> list[int]:
        return [int(np.count_nonzero(self.trial.free.free & pool.mask)) for pool in self.order.pools.values()]

    def _admit_all(self) -> bool:
        """Admit whom anything allows; False when the cycle ends before everybody has been tried."""
        order = self.order
        order.begin(self._free_by_pool())
        while len(self.admits) < self.policy.max_admissions:
            number = order.next()
            if number is None:
                return True
            kind = self._class(number)
            if kind.backing_off_until is not None:
                order.refused(number)
                continue
            found = self.attempts.attempt(number, kind)
            if found is None:
                order.refused(number)
                self.refusals += 1
                if self._consider_shadow(number, kind) or self._worth_a_look():
                    self._close_hopeless()
                continue
            admit, effect = found
            self.refusals = 0
            self.admits.append(admit)
            self.admitted[admit.run_id] = number
            order.admitted(number, self._free_by_pool())
            self._reopen(kind, effect)
        return False

    def _clear(self) -> list[Recall]:
        """Those who ask for no device, and found no room, have others leave for them: the highest priority first."""
        order, trial = self.order, self.trial
        lacking = np.flatnonzero((order.need == 0) & order.remaining)
        if not len(lacking):
            return []
        lowest = trial.roster.priority[trial.roster.movable].min(initial=MAX_PRIORITY)
        asking = [
            (-kind.request.priority, self.queue[number].submitted_at, self.queue[number].run_id, number)
            for place in lacking.tolist()
            if (kind := self.classes[place]).request.priority > lowest
            and kind.backing_off_until is None
            and trial.beside.counts(kind.least)
            for number in [int(order.head[place])]
        ]
        return [recall for *_, number in sorted(asking) for recall in self.attempts.clear(number, self._class(number))]

    def _worth_a_look(self) -> bool:
        return self.refusals == PATIENCE and (not self.admits or int(np.count_nonzero(self.order.open)) > FEW)

    def _close_hopeless(self) -> None:
        """Refuse all that no attempt would admit, but for those of whom one in each resource pool gets a shadow."""
        screening, trial = self.screening, self.trial
        may_evict = self.attempts.preemptions < self.policy.max_preemptions and self.attempts.search_left > 0
        hopeless = screening.hopeless(may_evict=may_evict)
        shadowed = {keep.resource_pool for keep in trial.kept if not keep.pledge}
        heads = np.array([label not in shadowed for label in self.order.pools], bool)[screening.pool]
        self.order.close(hopeless & ~(heads & ~screening.leaving_for & (screening.total <= screening.room())))

    def _admit_ordered(self) -> None:
        """Whom an operator wants started goes before all others and past every limit, once it fits."""
        order = self.order
        order.begin(self._free_by_pool())
        for kind in self.classes:
            if not kind.ordered or len(self.admits) >= self.policy.max_admissions:
                continue
            number = kind.gangs[0]
            with self.trial.quota.lifted():
                found = self.attempts.attempt(number, kind)
                if found is None:
                    self._consider_shadow(number, kind)
                    continue
            self.admits.append(found[0])
            self.admitted[found[0].run_id] = number
            order.admitted(number, self._free_by_pool())

    def _reopen(self, kind: GangClass, effect: Effect) -> None:
        """Try refused classes again if this admission may have cured their refusal."""
        order, trial = self.order, self.trial
        if effect.kept_changed or effect.surplus:
            cured = np.ones(len(self.classes), bool)
        else:
            # Teams that lost gangs have quota again; gangs of a team that borrows more may be evicted by others.
            cured = np.isin(order.team, np.array(sorted(effect.teams), np.int64))
            if effect.teams and trial.quota.tree.nested:
                cured[:] = True
            if trial.quota.borrowed()[kind.team] > 0:
                least = trial.least_exposed_priority(kind.team)
                if least is not None:
                    quota = trial.quota
                    within = quota.within_each(order.team, order.need, kind.team)
                    lower = order.base_priority >= least if self.policy.time_sharing else order.base_priority > least
                    cured |= (order.team != kind.team) & (within | lower)
        if not cured.any():
            return
        self.attempts.forget_failures(room=effect.surplus)
        cured &= order.remaining & ~order.open
        if cured.any() and self.retries > 0:
            self.retries -= 1
            self.refusals = 0
            order.reopen(cured)

    def _consider_shadow(self, number: int, kind: GangClass) -> bool:
        """Keep a place for the head of a line that has none; True when one is kept now."""
        trial = self.trial
        if any(keep.resource_pool == kind.pool.label and not keep.pledge for keep in trial.kept):
            return False
        if not kind.request.devices and not trial.beside.counts(kind.least):
            return False  # any node that takes work will do
        if kind.leaving_for or not trial.may_keep(kind):
            return False
        return self.attempts.reservations.cast_shadow(number, kind)

    # ---- elastic gangs ------------------------------------------------------------------------------------------

    def _admitted(self, run_id: str) -> tuple[int, GangClass]:
        number = self.admitted[run_id]
        return number, self._class(number)

    def _somebody_waits(self, gang: RunningGang) -> bool:
        """Whether anybody but the holder of a shadow waits for what `gang` would take when it grows.

        That is devices of its kind, or processors and memory where it needs some of them too.
        """
        pool, counts = self.snapshot.fleet.pool_of(gang.request), self.trial.beside.counts
        needy = counts(Shape.of(gang.request, 1))
        for number, kind in enumerate(self.classes):
            if not self.order.remaining[number]:
                continue
            shadowed = len(kind.gangs) - kind.next == 1 and int(self.order.head[number]) in self.trial.keepers
            alike = not set(kind.pool.classes).isdisjoint(pool.classes) if kind.request.devices else False
            alike |= needy and counts(kind.least)
            if not shadowed and alike and self.trial.quota_allows(kind, kind.least.total):
                return True
        return False
