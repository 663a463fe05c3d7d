"""Why everybody else waits, in which place, and until when: what a cycle says of those it did not admit."""

from collections.abc import Sequence
from math import inf

import numpy as np

from dsec_blocks.model.reasons import Reason
from dsec_workers.scheduling import reasons
from dsec_workers.scheduling.decisions import Hold
from dsec_workers.scheduling.order import GangClass, Order
from dsec_workers.scheduling.placement import fits
from dsec_workers.scheduling.questions import fits_if_opened, fits_now, fits_without
from dsec_workers.scheduling.room import view_of
from dsec_workers.scheduling.shadow import earliest, expected_runtime
from dsec_workers.scheduling.trial import Trial


class Holds:
    """The waiting as the cycle ends."""

    def __init__(self, order: Order, trial: Trial) -> None:
        self.order, self.trial = order, trial
        self._told: dict[object, Reason] = {}

    def all(self, free_by_pool: Sequence[int]) -> list[Hold]:
        """Everybody who waits in order, the holders of shadows first."""
        numbers, summands = self.order.final(free_by_pool)
        holders = {keep.number for keep in self.trial.kept if not keep.pledge}
        numbers = [n for n in numbers if n in holders] + [n for n in numbers if n not in holders]
        why: dict[int, Reason] = {}
        for number in numbers:
            kind_number = int(self.order.class_of[number])
            if kind_number not in why and not self.order.open[kind_number]:
                why[kind_number] = self._why(number, self.order.classes[kind_number])
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
            label = self.order.classes[kind_number].pool.label
            places[label] = places.get(label, 0) + 1
            holds.append(
                Hold(
                    run_id=self.order.queue[number].run_id,
                    reason=reason,
                    position=places[label],
                    eta=etas.get(number),
                    factors=dict(zip(self.order.names, columns[number], strict=True)),
                )
            )
        return holds

    def _why(self, number: int, kind: GangClass) -> Reason:
        """The first reason of the closed set that applies as the cycle ends."""
        trial, request, shape = self.trial, kind.request, kind.least
        if request.devices == 0:
            if kind.backing_off_until is not None and fits_now(trial, number, kind):
                return reasons.backing_off(kind.backing_off_until, self.trial.now)
            return reasons.no_open_node(self.trial.snapshot.frozen.nodes, self.trial.snapshot.fleet.nodes)
        room = fits_now(trial, number, kind)
        if kind.parent is not None and not room and fits_without(trial, kind.parent, number, kind):
            return reasons.waits_for_parent(kind.parent, request)
        if not trial.quota_allows(kind, shape.total):
            team = trial.quota.teams[kind.team]
            used, ceiling = int(trial.quota.used[kind.team]), trial.quota.ceiling(kind.team, request)
            if trial.quota.user_room(kind.team, kind.user) < shape.total:
                return reasons.waits_for_person(request, team, kind.user)
            return reasons.waits_for_quota(request, team, used, ceiling)
        if kind.leaving_for and not room:
            run_id = self.order.queue[number].run_id
            count = sum(gang.evicting_for == run_id for gang in self.trial.snapshot.gangs() if gang.evicting)
            return reasons.waits_for_victims(request, count)
        if room and kind.backing_off_until is not None:
            return reasons.backing_off(kind.backing_off_until, self.trial.now)
        closed = self.trial.snapshot.frozen.nodes
        if closed and fits_if_opened(trial, number, kind):
            name, text = min(closed.items())
            return reasons.frozen(text, f"node {name}" if len(closed) == 1 else f"{len(closed)} nodes, {name} first,")
        if kind.whole is not None and fits(trial.fleet, view_of(trial.fleet, trial.free.free & kind.whole.mask), shape):
            return reasons.withheld(request, kind.withheld_by)
        avoided = trial.avoided(kind, number)
        starts = [trial.kept[index].start for index in avoided if trial.kept[index].start < inf]
        key = (kind.pool.label, shape, request.nodes, request.gpu_model, request.gpu_memory_bytes, avoided)
        if key not in self._told:
            self._told[key] = reasons.waits_for_capacity(
                self.trial.snapshot.fleet,
                request,
                shape,
                trial.view(trial.free, kind, avoided),
                trial.view(trial.free, kind, ()),
                min(starts, default=None),
                self.trial.now,
            )
        return self._told[key]

    def _estimates(self, numbers: Sequence[int]) -> dict[int, float]:
        """When the first of every resource pool start, if they start in this order and nobody else comes."""
        trial, fleet = self.trial, self.trial.snapshot.fleet
        times = trial.times.copy()
        etas: dict[int, float] = {}
        for keep in (k for k in trial.kept if not k.pledge):
            etas[keep.number] = keep.start
            times[keep.devices] = keep.start + expected_runtime(keep.request, self.trial.policy)
        seen: dict[str, int] = {}
        for number in numbers:
            kind = self.order.classes[int(self.order.class_of[number])]
            place = seen[kind.pool.label] = seen.get(kind.pool.label, 0) + 1
            if place > self.trial.policy.eta_positions or number in etas:
                if len(seen) == len(self.order.pools) and min(seen.values()) > self.trial.policy.eta_positions:
                    break
                continue
            shape = kind.least
            if not shape.total or not trial.quota_allows(kind, shape.total):
                continue
            found = earliest(fleet, times, kind.pool.mask, shape)
            if found is None:
                continue
            etas[number] = max(found[0], kind.backing_off_until or 0.0)
            times[np.concatenate(found[2])] = etas[number] + expected_runtime(kind.request, self.trial.policy)
        return etas
