"""`plan()`: one scheduling cycle, from a snapshot and a queue to decisions.

Sort out what can never start; then, again and again, try the first in order until nobody can start. An admission
changes shares, room and rights, so the order is asked anew after each: the result equals planning one admission at a
time. Every pass of the loop either admits a gang or closes a class of gangs, and classes are reopened only by
admissions that evict, move a shadow or make a team borrow, within a budget.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from dsec_blocks.model.reasons import Reason
from dsec_workers.scheduling import reasons
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Shadow
from dsec_workers.scheduling.order import FACTORS, GangClass, Order
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.room import View, view_of
from dsec_workers.scheduling.shadow import earliest, expected_runtime
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot
from dsec_workers.scheduling.trial import Effect, Trial, least_shape


def plan(snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy, now: float) -> Plan:
    """Decide who starts where, who is evicted for it, and why everybody else waits. Times in seconds since the epoch.

    Pure: equal arguments give equal plans, and nothing is changed. Gangs that are not due yet (`eligible_at > now`),
    that hold devices already, or that come after `policy.max_admissions` are not mentioned in the plan.
    """
    return _Cycle(snapshot, queue, policy, now).run()


class _Cycle:
    """The steps of one call of `plan`."""

    def __init__(self, snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        due = [gang for gang in queue if gang.eligible_at <= now and gang.run_id not in snapshot.slots]
        asked: dict[str, int] = {}
        for gang in due:
            asked[gang.team] = asked.get(gang.team, 0) + gang.request.devices
        quota = Quota(snapshot, asked, policy, now)
        self.refused: list[tuple[QueuedGang, Reason]] = []
        self.everything: dict[str, View] = {}
        """Per resource pool, the empty cluster."""
        self.holdable: dict[tuple[str, Shape], bool] = {}
        self.told: dict[object, Reason] = {}
        self.queue, self.classes = self._sort_out(due, quota)
        self.order = Order(self.queue, self.classes, quota, policy, now)
        self.trial = Trial(snapshot, self.queue, quota, policy, now)
        self.admits: list[Admit] = []
        self.retries = policy.max_retries

    def run(self) -> Plan:
        """All the steps."""
        self._take_over()
        self._admit_all()
        self.refused.sort(key=lambda pair: (pair[0].submitted_at, pair[0].run_id))
        holds = self._holds() + [Hold(run_id=gang.run_id, reason=reason) for gang, reason in self.refused]
        trial, fleet = self.trial, self.snapshot.fleet
        return Plan(
            admits=tuple(self.admits),
            holds=tuple(holds),
            shadows=tuple(
                Shadow(
                    run_id=keep.run_id,
                    resource_pool=keep.resource_pool,
                    start=keep.start,
                    devices=tuple(fleet.uuids[number] for number in keep.devices.tolist()),
                    since=keep.since,
                )
                for keep in sorted(trial.kept, key=lambda k: (k.since, k.run_id))
                if not keep.pledge
            ),
            policy_version=self.policy.version,
            conditional=dict(trial.conditional),
        )

    def _sort_out(self, due: Sequence[QueuedGang], quota: Quota) -> tuple[list[QueuedGang], list[GangClass]]:
        """Classes of the gangs that may start some day; the others are refused with a reason each."""
        verdicts: dict[object, Reason | None] = {}
        queue: list[QueuedGang] = []
        classes: dict[object, GangClass] = {}
        leaving_for = {gang.evicting_for for gang in self.snapshot.gangs() if gang.evicting and gang.evicting_for}
        now, slots = self.now, self.snapshot.slots
        for gang in due:
            request = gang.request
            what = (
                gang.team, request.nodes, request.devices_per_node, request.gpu_model, request.gpu_memory_bytes,
                request.topology, request.priority, request.kind, request.preemptible, request.min_nodes,
            )  # fmt: skip
            if what not in verdicts:
                verdicts[what] = self._never(gang, quota)
            verdict = verdicts[what]
            if verdict is not None:
                self.refused.append((gang, verdict))
                quota.forget(gang.team, gang.request.devices)
                continue
            parent = gang.parent_run_id if gang.parent_run_id in slots else None
            backing_off = gang.not_before if gang.not_before is not None and gang.not_before > now else None
            alone = gang.run_id if gang.run_id in leaving_for else None
            overhead = None if request.max_runtime_seconds is not None else (
                gang.checkpoint_seconds, gang.restart_seconds, request.grace_seconds,
            )  # fmt: skip
            user = gang.created_by if self.snapshot.teams[gang.team].user_devices is not None else ""
            key = (what, request.max_runtime_seconds, overhead, parent, backing_off, alone, user)
            kind = classes.get(key)
            if kind is None:
                kind = classes[key] = GangClass(
                    request=request,
                    team=quota.number[gang.team],
                    pool=self.snapshot.fleet.pool_of(request),
                    least=least_shape(request),
                    gangs=[],
                    backing_off_until=backing_off,
                    parent=parent,
                    user=user,
                    leaving_for=alone is not None,
                )
            kind.gangs.append(len(queue))
            queue.append(gang)
        return queue, list(classes.values())

    def _never(self, gang: QueuedGang, quota: Quota) -> Reason | None:
        """The first reason that waiting does not cure (a freeze included, which an operator has to lift)."""
        request, fleet, frozen = gang.request, self.snapshot.fleet, self.snapshot.frozen
        team = self.snapshot.teams.get(gang.team)
        if team is not None and request.priority > team.highest_priority:
            return reasons.above_highest_priority(request, team)
        if team is None:
            return reasons.unknown_team(gang.team, self.snapshot.teams)
        pool = fleet.pool_of(request)
        least = request.min_nodes or request.nodes
        shape = least_shape(request)
        if request.devices:
            if pool.label not in self.everything:
                self.everything[pool.label] = view_of(fleet, pool.mask)
            if (pool.label, shape) not in self.holdable:
                self.holdable[pool.label, shape] = fits(fleet, self.everything[pool.label], shape)
            if not pool.classes or not self.holdable[pool.label, shape]:
                return reasons.never_fits(fleet, pool, self.everything[pool.label], request, shape)
            ceiling, devices = quota.highest(quota.number[gang.team], request), least * request.devices_per_node
            if devices > ceiling:
                return reasons.over_team_limit(request, team, devices, ceiling)
        if frozen.everything is not None:
            return reasons.frozen(frozen.everything, "the pool")
        if gang.team in frozen.teams:
            return reasons.frozen(frozen.teams[gang.team], f"team {gang.team}")
        return None

    def _take_over(self) -> None:
        """Restore what earlier cycles kept for gangs that still wait."""
        numbers = {gang.run_id: number for number, gang in enumerate(self.queue)}
        for shadow in sorted(self.snapshot.shadows, key=lambda s: (s.since, s.run_id)):
            number = numbers.get(shadow.run_id)
            if number is not None:
                self.trial.restore_shadow(shadow, number, self._class(number))
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
                    self.trial.pledge(number, kind, np.flatnonzero(mine))
        self.trial.renew_all()
        self.trial.kept_moved()

    def _class(self, number: int) -> GangClass:
        return self.classes[int(self.order.class_of[number])]

    def _free_by_pool(self) -> list[int]:
        return [int(np.count_nonzero(self.trial.free.free & pool.mask)) for pool in self.order.pools.values()]

    def _admit_all(self) -> None:
        order, trial = self.order, self.trial
        order.begin(self._free_by_pool())
        while len(self.admits) < self.policy.max_admissions:
            number = order.next()
            if number is None:
                return
            kind = self._class(number)
            if kind.backing_off_until is not None:
                order.refused(number)
                continue
            found = trial.attempt(number, kind)
            if found is None:
                order.refused(number)
                self._consider_shadow(number, kind)
                continue
            admit, effect = found
            self.admits.append(admit)
            order.admitted(number, self._free_by_pool())
            self._reopen(kind, effect)

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
                    cured |= (order.team != kind.team) & (within | (order.base_priority > least))
        if not cured.any():
            return
        trial.forget_failures(room=effect.surplus)
        cured &= order.remaining & ~order.open
        if cured.any() and self.retries > 0:
            self.retries -= 1
            order.reopen(cured)

    def _consider_shadow(self, number: int, kind: GangClass) -> None:
        trial = self.trial
        if any(keep.resource_pool == kind.pool.label and not keep.pledge for keep in trial.kept):
            return
        if kind.leaving_for or not trial.quota_allows(kind, kind.least.total):
            return
        trial.cast_shadow(number, kind)

    # ---- those who wait -----------------------------------------------------------------------------------------

    def _holds(self) -> list[Hold]:
        numbers, summands = self.order.final(self._free_by_pool())
        holders = {keep.number for keep in self.trial.kept if not keep.pledge}
        numbers = [n for n in numbers if n in holders] + [n for n in numbers if n not in holders]
        why: dict[int, Reason] = {}
        for number in numbers:
            kind_number = int(self.order.class_of[number])
            if kind_number not in why and not self.order.open[kind_number]:
                why[kind_number] = self._why(number, self.classes[kind_number])
        etas = self._estimates(numbers)
        columns = list(zip(*(values.tolist() for values in summands), strict=True))
        class_of = self.order.class_of.tolist()
        places: dict[str, int] = {}
        holds = []
        for number in numbers:
            kind_number = class_of[number]
            reason = why.get(kind_number)
            if reason is None:
                continue
            label = self.classes[kind_number].pool.label
            places[label] = places.get(label, 0) + 1
            holds.append(
                Hold(
                    run_id=self.queue[number].run_id,
                    reason=reason,
                    position=places[label],
                    eta=etas.get(number),
                    factors=dict(zip(FACTORS, columns[number], strict=True)),
                )
            )
        return holds

    def _why(self, number: int, kind: GangClass) -> Reason:
        """The first reason of the closed set that applies as the cycle ends."""
        trial, request, shape = self.trial, kind.request, kind.least
        if request.devices == 0:
            if kind.backing_off_until is not None and trial.fits_now(number, kind):
                return reasons.backing_off(kind.backing_off_until, self.now)
            return reasons.no_open_node(self.snapshot.frozen.nodes, self.snapshot.fleet.nodes)
        fits_now = trial.fits_now(number, kind)
        if kind.parent is not None and not fits_now and trial.fits_without(kind.parent, number, kind):
            return reasons.waits_for_parent(kind.parent, request)
        if not trial.quota_allows(kind, shape.total):
            team = trial.quota.teams[kind.team]
            used, ceiling = int(trial.quota.used[kind.team]), trial.quota.ceiling(kind.team, request)
            if trial.quota.user_room(kind.team, kind.user) < shape.total:
                return reasons.waits_for_person(request, team, kind.user)
            return reasons.waits_for_quota(request, team, used, ceiling)
        if kind.leaving_for and not fits_now:
            run_id = self.queue[number].run_id
            count = sum(gang.evicting_for == run_id for gang in self.snapshot.gangs() if gang.evicting)
            return reasons.waits_for_victims(request, count)
        if fits_now and kind.backing_off_until is not None:
            return reasons.backing_off(kind.backing_off_until, self.now)
        closed = self.snapshot.frozen.nodes
        if closed and trial.fits_if_opened(number, kind):
            name, text = min(closed.items())
            return reasons.frozen(text, f"node {name}" if len(closed) == 1 else f"{len(closed)} nodes, {name} first,")
        avoided = trial.avoided(kind, number)
        starts = [trial.kept[index].start for index in avoided if trial.kept[index].start < inf]
        key = (kind.pool.label, shape, request.nodes, request.gpu_model, request.gpu_memory_bytes, avoided)
        if key not in self.told:
            self.told[key] = reasons.waits_for_capacity(
                self.snapshot.fleet,
                request,
                shape,
                trial.view(trial.free, kind, avoided),
                trial.view(trial.free, kind, ()),
                min(starts, default=None),
                self.now,
            )
        return self.told[key]

    def _estimates(self, numbers: Sequence[int]) -> dict[int, float]:
        """When the first of every resource pool start, if they start in this order and nobody else comes."""
        trial, fleet = self.trial, self.snapshot.fleet
        times = trial.times.copy()
        etas: dict[int, float] = {}
        for keep in (k for k in trial.kept if not k.pledge):
            etas[keep.number] = keep.start
            times[keep.devices] = keep.start + expected_runtime(keep.request, self.policy)
        seen: dict[str, int] = {}
        for number in numbers:
            kind = self._class(number)
            place = seen[kind.pool.label] = seen.get(kind.pool.label, 0) + 1
            if place > self.policy.eta_positions or number in etas:
                if len(seen) == len(self.order.pools) and min(seen.values()) > self.policy.eta_positions:
                    break
                continue
            shape = kind.least
            if not shape.total or not trial.quota_allows(kind, shape.total):
                continue
            found = earliest(fleet, times, kind.pool.mask, shape)
            if found is None:
                continue
            etas[number] = max(found[0], kind.backing_off_until or 0.0)
            times[np.concatenate(found[2])] = etas[number] + expected_runtime(kind.request, self.policy)
        return etas
