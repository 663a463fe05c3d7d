"""Sorting out: who may start some day, in classes of gangs that are alike, and a reason for each that never will."""

from collections.abc import Sequence

from dsec_blocks.model.reasons import Reason
from dsec_workers.scheduling import reasons
from dsec_workers.scheduling.cost import overhead_seconds
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.room import View, view_of
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot
from dsec_workers.scheduling.time_sharing import level_of, lift_due
from dsec_workers.scheduling.trial import least_shape
from dsec_workers.scheduling.withheld import Withholding


class Sorting:
    """The gangs that are due: `queue` in `classes`, and those that are `refused`."""

    def __init__(self, snapshot: Snapshot, due: Sequence[QueuedGang], quota: Quota, policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        self.refused: list[tuple[QueuedGang, Reason]] = []
        self._withholding = Withholding(snapshot.fleet, snapshot.withheld, policy, now)
        self.lifted: set[str] = set()
        """Gangs at the first level by their one lift."""
        self._everything: dict[str, View] = {}
        """Per resource pool, the empty cluster."""
        self._holdable: dict[tuple[str, Shape], bool] = {}
        self._spared_by: dict[str, list[str]] = {}
        for gang in due:
            for run_id in gang.evicted_for:
                self._spared_by.setdefault(run_id, []).append(gang.run_id)
        self.queue, self.classes = self._sort_out(due, quota)

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
                request.topology, request.priority, request.kind, request.preemptible, request.min_nodes, request.cpus,
                request.memory_bytes, request.share, gang.seconds_saved,
            )  # fmt: skip
            override = self.snapshot.overrides.get(gang.run_id)
            if override is None and what in verdicts:
                verdict = verdicts[what]
            elif override is None:
                verdict = verdicts[what] = self._never(gang, quota)
            elif override.admit:
                verdict = self._never(gang, quota, ordered=True)
            else:
                verdict = reasons.held_back(override.text)
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
            level = 0
            if self.policy.time_sharing:
                level = level_of(gang, self.policy, now)
                if level == 0 and lift_due(gang, self.policy, now):
                    self.lifted.add(gang.run_id)
            binding = self._binding(gang) if self._withholding.orders and request.devices else ()
            ordered = gang.run_id if override is not None else None
            spared_by = tuple(sorted(self._spared_by.get(gang.run_id, ()))) if self._spared_by else ()
            past = (gang.evicted_for, spared_by)
            key = (
                what,
                request.max_runtime_seconds,
                overhead,
                parent,
                backing_off,
                alone,
                user,
                level,
                past,
                binding,
                ordered,
            )
            kind = classes.get(key)
            if kind is None:
                pool = self.snapshot.fleet.pool_of(request)
                kind = classes[key] = GangClass(
                    request=request,
                    team=quota.number[gang.team],
                    pool=self._withholding.pool(pool, binding),
                    whole=pool if binding else None,
                    withheld_by="; ".join(self._withholding.orders[number].text for number in binding),
                    ordered=ordered is not None,
                    least=least_shape(request),
                    gangs=[],
                    backing_off_until=backing_off,
                    parent=parent,
                    user=user,
                    level=level,
                    evicted_for=gang.evicted_for,
                    never_evicted_by=spared_by,
                    leaving_for=alone is not None,
                )
            kind.gangs.append(len(queue))
            queue.append(gang)
        return queue, list(classes.values())

    def _binding(self, gang: QueuedGang) -> tuple[int, ...]:
        """The orders that keep devices from it."""
        request = gang.request
        overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, self.policy)
        worth = self.policy.conditional_worth * overhead + request.grace_seconds if request.evictable else None
        return self._withholding.binding(
            team=gang.team, tags=gang.tags, max_runtime_seconds=request.max_runtime_seconds, worth_seconds=worth
        )

    def _never(self, gang: QueuedGang, quota: Quota, *, ordered: bool = False) -> Reason | None:
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
            if pool.label not in self._everything:
                self._everything[pool.label] = view_of(fleet, pool.mask, Hosts.empty(fleet))
            if (pool.label, shape) not in self._holdable:
                self._holdable[pool.label, shape] = fits(fleet, self._everything[pool.label], shape)
            if not pool.classes or not self._holdable[pool.label, shape]:
                return reasons.never_fits(fleet, pool, self._everything[pool.label], request, shape)
            ceiling, devices = quota.highest(quota.number[gang.team], request), least * request.devices_per_node
            if devices > ceiling and not ordered:
                return reasons.over_team_limit(request, team, devices, ceiling)
        if ordered:
            return None
        if frozen.everything is not None:
            return reasons.frozen(frozen.everything, "the pool")
        if gang.team in frozen.teams:
            return reasons.frozen(frozen.teams[gang.team], f"team {gang.team}")
        return None
