"""Why everybody else waits, in which place, and until when: what a cycle says of those it did not admit."""

from collections.abc import Sequence
from math import inf

import numpy as np

from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling import reasons
from dsec_workers.scheduling.decisions import Hold
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.hold_table import HoldTable
from dsec_workers.scheduling.order import GangClass, Order, narrow
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.questions import fits_free, fits_if_opened, fits_now, fits_without
from dsec_workers.scheduling.room import View, view_of
from dsec_workers.scheduling.screening import MOST_KEPT, Screening, unpacked
from dsec_workers.scheduling.shadow import earliest, expected_runtime
from dsec_workers.scheduling.trial import Trial

NO_REASON = Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text="")


class Holds:
    """The waiting as the cycle ends."""

    def __init__(self, order: Order, trial: Trial, screening: Screening) -> None:
        self.order, self.trial, self.screening = order, trial, screening
        self._limits: dict[tuple[int, bool], tuple[int, int]] = {}
        self._best: dict[object, str] = {}
        self._free_devices: dict[object, int] = {}

    def all(self, free_by_pool: Sequence[int], refused: tuple[Hold, ...] = ()) -> HoldTable:
        """Everybody who waits in order, the holders of shadows first, and then the `refused`."""
        order = self.order
        numbers, summands = order.final(free_by_pool)
        holders = [keep.number for keep in self.trial.kept if not keep.pledge]
        if holders:
            first = np.isin(numbers, holders)
            numbers = np.concatenate((numbers[first], numbers[~first]))
        etas = self._estimates(numbers)
        told = numbers[~order.open[order.class_of[numbers]]]
        kinds = order.class_of[told]
        place = np.full(len(order.queue), -1, np.int64)
        place[told] = np.arange(len(told))
        return HoldTable(
            run_ids=order.run_ids[told],
            kinds=kinds,
            reasons=self._reasons(told, kinds),
            summands=list(zip(*(values.tolist() for values in (summands[0], *summands[2:])), strict=True)),
            positions=_places(order.pool[kinds]),
            etas={int(place[number]): eta for number, eta in etas.items() if place[number] >= 0},
            ages=order.policy.w_age * order.age[told],
            others=refused,
        )

    def _reasons(self, numbers: Ints, kinds: Ints) -> list[Reason]:
        """By class, why those of `numbers` (of these `kinds`) wait; of other classes anything."""
        order, trial, screening = self.order, self.trial, self.screening
        present, first = np.unique(kinds, return_index=True)
        allowed = (screening.total <= screening.room()).tolist()
        bits = screening.avoided()[1].tolist()
        many = len(trial.kept) > MOST_KEPT
        found: list[Reason] = [NO_REASON] * len(order.classes)
        lacking: dict[tuple[int, int], Reason] = {}
        for kind_number, number in zip(present.tolist(), numbers[first].tolist(), strict=True):
            kind = order.classes[kind_number]
            if many or kind.special or number in trial.keepers:
                found[kind_number] = self._why(number, kind)
            elif not allowed[kind_number]:
                found[kind_number] = self._beyond_limits(kind)
            else:
                key = kind.asks, bits[kind_number]
                reason = lacking.get(key)
                if reason is None:
                    reason = lacking[key] = self._lacking(number, kind, unpacked(bits[kind_number]))
                found[kind_number] = reason
        return found

    def _why(self, number: int, kind: GangClass) -> Reason:
        """The first reason of the closed set that applies as the cycle ends."""
        trial, request, shape = self.trial, kind.request, kind.least
        if request.devices == 0:
            if kind.leaving_for and not fits_now(trial, number, kind):
                return self._waits_for_victims(number, request)
            if kind.backing_off_until is not None and fits_now(trial, number, kind):
                return reasons.backing_off(kind.backing_off_until, trial.now)
            starts = [trial.kept[index].start for index in trial.avoided(kind, number)]
            if starts and trial.host_seats(kind, trial.free.hosts) is not None:
                return reasons.kept_for_the_first(request, min(starts), trial.now)
            return reasons.no_open_node(request, trial.snapshot.frozen.nodes, trial.snapshot.fleet.nodes)
        room = fits_now(trial, number, kind)
        if kind.parent is not None and not room and fits_without(trial, kind.parent, number, kind):
            return reasons.waits_for_parent(kind.parent, request)
        if not trial.quota_allows(kind, shape.total):
            return self._beyond_limits(kind)
        if kind.leaving_for and not room:
            return self._waits_for_victims(number, request)
        if room and kind.backing_off_until is not None:
            return reasons.backing_off(kind.backing_off_until, self.trial.now)
        return self._lacking(number, kind, trial.avoided(kind, number))

    def _waits_for_victims(self, number: int, request: GangRequest) -> Reason:
        run_id = self.order.queue[number].run_id
        count = sum(gang.evicting_for == run_id for gang in self.trial.snapshot.gangs() if gang.evicting)
        return reasons.waits_for_victims(request, count)

    def _beyond_limits(self, kind: GangClass) -> Reason:
        """Its team, or its person, would hold too much."""
        quota, request = self.trial.quota, kind.request
        team = quota.teams[kind.team]
        if quota.user_room(kind.team, kind.user) < kind.least.total:
            return reasons.waits_for_person(request, team, kind.user)
        evictable = request.evictable
        limit = self._limits.get((kind.team, evictable))
        if limit is None:
            limit = int(quota.used[kind.team]), quota.ceiling(kind.team, request)
            self._limits[kind.team, evictable] = limit
        if kind.told is None or kind.told[0] != limit:
            kind.told = limit, reasons.waits_for_quota(request, team, *limit)
        return kind.told[1]

    def _lacking(self, number: int, kind: GangClass, avoided: tuple[int, ...]) -> Reason:
        """It is within its limits: what it needs is closed, withheld, or not there."""
        trial, request, shape = self.trial, kind.request, kind.least
        closed = trial.snapshot.frozen.nodes
        if closed and self._fits_if_opened(number, kind, avoided):
            name, text = min(closed.items())
            return reasons.frozen(text, f"node {name}" if len(closed) == 1 else f"{len(closed)} nodes, {name} first,")
        if kind.whole is not None and fits(trial.fleet, self._whole(kind.whole.mask), shape):
            return reasons.withheld(request, kind.withheld_by)
        starts = [trial.kept[index].start for index in avoided if trial.kept[index].start < inf]
        mine, total = self._free(kind, avoided), self._free(kind, ())
        everybody = trial.view(trial.free, kind, ())
        if fits_free(trial, kind, ()):
            return reasons.waits_for_others(request, mine, total, min(starts, default=None), trial.now)
        key = (kind.pool.label, shape)
        if key not in self._best:
            self._best[key] = reasons.best(trial.snapshot.fleet, everybody, shape)
        return reasons.waits_for_capacity(request, shape, total, self._best[key])

    def _whole(self, mask: Bools) -> View:
        trial = self.trial
        return view_of(trial.fleet, trial.free.free & mask, trial.free.hosts)

    def _free(self, kind: GangClass, avoided: tuple[int, ...]) -> int:
        """How many devices are free to the class."""
        key = (kind.pool.label, avoided)
        if key not in self._free_devices:
            self._free_devices[key] = int(self.trial.view(self.trial.free, kind, avoided).node_free.sum())
        return self._free_devices[key]

    def _fits_if_opened(self, number: int, kind: GangClass, avoided: tuple[int, ...]) -> bool:
        key = ("opened", kind.pool.label, kind.least, avoided)
        if key not in self.trial.fits:
            self.trial.fits[key] = fits_if_opened(self.trial, number, kind)
        return self.trial.fits[key]

    def _estimates(self, numbers: Ints) -> dict[int, float]:
        """When the first of every resource pool start, if they start in this order and nobody else comes."""
        trial, fleet = self.trial, self.trial.snapshot.fleet
        times = trial.times.copy()
        etas: dict[int, float] = {}
        expected: list[tuple[Ints, Shape, float]] = []
        for keep in (k for k in trial.kept if not k.pledge):
            etas[keep.number] = keep.start
            learned = trial.queue[keep.number].expected_seconds
            end = keep.start + expected_runtime(keep.request, trial.policy, learned=learned)
            times[keep.devices] = end
            expected.append((keep.nodes, keep.shape, end))
        seen: dict[str, int] = {}
        for number in numbers.tolist():
            kind = self.order.classes[int(self.order.class_of[number])]
            place = seen[kind.pool.label] = seen.get(kind.pool.label, 0) + 1
            if place > self.trial.policy.eta_positions or number in etas:
                if len(seen) == len(self.order.pools) and min(seen.values()) > self.trial.policy.eta_positions:
                    break
                continue
            shape = kind.least
            if not shape.total or not trial.quota_allows(kind, shape.total):
                continue
            beside = trial.beside.ready(shape, (), among=expected) if trial.beside.counts(shape) else None
            found = earliest(fleet, times, kind.pool.mask, shape, beside=beside)
            if found is None:
                continue
            etas[number] = max(found[0], kind.backing_off_until or 0.0)
            learned = trial.queue[number].expected_seconds
            end = etas[number] + expected_runtime(kind.request, trial.policy, learned=learned)
            times[np.concatenate(found[2])] = end
            expected.append((found[1].nodes, shape, end))
        return etas


def _places(pools: Ints) -> Ints:
    """The place of each in the line of its own resource pool, from 1."""
    order = np.argsort(narrow(pools), kind="stable")
    sizes = np.bincount(pools, minlength=1)
    places = np.empty(len(pools), np.int64)
    places[order] = np.arange(len(pools)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    return places
