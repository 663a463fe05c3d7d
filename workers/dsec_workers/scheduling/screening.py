"""Who cannot start as things stand: asked of all classes at once, so that only the others are tried one by one.

A class is hopeless when an attempt would fail without having looked for victims: what it needs is not free, not even
once those who are leaving have left, and would not be if every gang that it may ask had gone; or its limits would not
let it in even then. The bounds are loose (whole nodes, whatever the topology): a class that is not called hopeless may
still be refused, but none that an attempt would admit is called so.
"""

from collections.abc import Callable
from functools import lru_cache
from math import inf

import numpy as np

from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.order import GangClass, Order
from dsec_workers.scheduling.placement import fits
from dsec_workers.scheduling.room import Room
from dsec_workers.scheduling.shadow import Kept
from dsec_workers.scheduling.tree import NO_LIMIT
from dsec_workers.scheduling.trial import Trial

LEVELS_APART = 64
"""Base priority and level of time sharing as one number: more than there are levels."""
MOST_KEPT = 60
"""Reservations whose combinations are looked at one by one."""


class Screening:
    """One cycle's classes as arrays; `order` and `trial` change underneath."""

    def __init__(self, order: Order, trial: Trial) -> None:
        self.order, self.trial, classes = order, trial, order.classes
        self.team, self.pool = order.team, order.pool
        self.members: Ints = np.array([kind.least.members for kind in classes], np.int64)
        self.devices: Ints = np.array([kind.least.devices for kind in classes], np.int64)
        self.total: Ints = self.members * self.devices
        self.priority: Ints = order.base_priority
        self.evictable = np.array([kind.request.evictable for kind in classes], bool)
        self.leaving_for = np.array([kind.leaving_for for kind in classes], bool)
        self.pools = list(order.pools.values())
        self.persons = [
            (number, kind)
            for number, kind in enumerate(classes)
            if trial.quota.teams[kind.team].user_devices is not None
        ]
        self._rank: Ints = self.priority * LEVELS_APART + (LEVELS_APART - 1 - order.level)
        self._ends = np.array(
            [inf if (limit := kind.request.max_runtime_seconds) is None else trial.now + limit for kind in classes]
        )
        self._grace = np.array([kind.request.grace_seconds for kind in classes])
        self._wronged = [(number, kind) for number, kind in enumerate(classes) if kind.evicted_for]

    # ---- limits -----------------------------------------------------------------------------------------------

    def room(self) -> Ints:
        """Per class, the devices that its team, and its person, may still use for it."""
        quota = self.trial.quota
        room = np.minimum(self._borrowable(), self._owned())
        for number, kind in self.persons:
            room[number] = min(int(room[number]), quota.user_room(kind.team, kind.user))
        return np.asarray(room, np.int64)

    def _borrowable(self) -> Ints:
        """Per class, what the limits of the tree leave to its team; negative where it is over one."""
        quota = self.trial.quota
        if quota.tree.nested:
            left = np.array([quota.tree.room(team) for team in range(len(quota.teams))], np.int64)
        else:
            left = quota.tree.limit[: len(quota.teams)] - quota.used
        return np.asarray(left[self.team], np.int64)

    def _owned(self) -> Ints:
        """Per class, what its team owns and does not use; no limit where it may borrow, for it can be evicted."""
        quota = self.trial.quota
        return np.where(self.evictable, NO_LIMIT, (quota.nominal - quota.used)[self.team])

    # ---- what is kept for others ------------------------------------------------------------------------------

    def bound_by(self, keep: Kept) -> Bools:
        """Per class, whether it must leave alone what is kept: all but those that could evict the holder."""
        if not keep.request.evictable:
            return np.ones(len(self.team), bool)
        quota = self.trial.quota
        lower = keep.request.priority < self.priority
        within = quota.within_each(self.team, self.total, keep.team)
        borrowing = (quota.tree.over_all()[:, keep.team] + keep.request.devices > 0)[self.team]
        overruled = (lower & (borrowing | within)) | (borrowing & within)
        overruled = np.where((self.team == keep.team) | (self.total == 0), lower, overruled)
        for number, kind in self._wronged:
            if keep.run_id in kind.evicted_for:
                overruled[number] = False
        return np.asarray(~overruled, bool)

    def avoided(self) -> tuple[Ints, Ints]:
        """Per class, the reservations that bind it, as bits: whatever its contract, and by it (see `Trial.avoided`)."""
        anyway, by_contract = np.zeros(len(self.team), np.int64), np.zeros(len(self.team), np.int64)
        for index, keep in enumerate(self.trial.kept):
            bound = self.bound_by(keep)
            anyway |= bound.astype(np.int64) << index
            if not keep.pledge:
                bound &= self._ends > keep.start
            by_contract |= bound.astype(np.int64) << index
        return anyway, by_contract

    def fitting(self, room: Room, bits: Ints, asked: Bools) -> Bools:
        """Which of the classes in `asked` would fit in `room` without the devices of the reservations in `bits`."""
        found = asked & self._roomy(room)
        known: dict[object, bool] = {}
        for number in np.flatnonzero(found).tolist():
            kind, avoided = self.order.classes[number], unpacked(int(bits[number]))
            key = (kind.pool.label, kind.least, avoided)
            if key not in known:
                known[key] = fits(self.trial.fleet, self.trial.view(room, kind, avoided), kind.least)
            found[number] = known[key]
        return found

    def _roomy(self, room: Room) -> Bools:
        """Which classes find enough nodes with as many free devices as each member needs."""
        return self._enough(lambda kind: self.trial.view(room, kind, ()).node_free)

    def _enough(self, free_of: Callable[[GangClass], Ints]) -> Bools:
        found = np.zeros(len(self.team), bool)
        for pool in np.unique(self.pool).tolist():
            mine = np.flatnonzero(self.pool == pool)
            free = free_of(self.order.classes[int(mine[0])])
            able = np.cumsum(np.bincount(free, minlength=int(self.devices[mine].max()) + 1)[::-1])[::-1]
            found[mine] = able[self.devices[mine]] >= self.members[mine]
        return found

    # ---- the verdict ------------------------------------------------------------------------------------------

    def hopeless(self, *, may_evict: bool) -> Bools:
        """Classes that no attempt would admit now; without `may_evict` nobody is asked to make room any more."""
        trial, order = self.trial, self.order
        room = self.room()
        asking = order.open & (order.need > 0)
        allowed = asking & (self.total <= room)
        hope = ~asking
        if len(trial.kept) > MOST_KEPT:
            hope |= allowed & self._roomy(trial.soon)
        elif allowed.any():
            # Devices of the head of line may be passed on condition, by those that can be told to leave in time.
            passable = np.zeros(len(self.team), np.int64)
            for index, keep in enumerate(trial.kept):
                if not keep.pledge:
                    passes = self.evictable & (keep.start - trial.now >= self._grace)
                    passable |= passes.astype(np.int64) << index
            anyway, by_contract = self.avoided()
            hope |= self.fitting(trial.free, by_contract & ~passable, allowed & ~hope)
            hope |= self.fitting(trial.soon, anyway, allowed & ~hope)
        for number in trial.keepers:
            if number >= 0:
                hope[order.class_of[number]] = True
        if may_evict:
            hope |= self._reachable(asking & ~hope & ~self.leaving_for)
        for number, kind in self.persons:
            if trial.quota.user_room(kind.team, kind.user) < self.total[number] and order.need[number] > 0:
                hope[number] = False
        return asking & ~hope

    def _reachable(self, asked: Bools) -> Bools:
        """Which of these would fit, and be within their limits, if every gang that they may ask had gone."""
        found = np.zeros(len(self.team), bool)
        roster, quota = self.trial.roster, self.trial.quota
        numbers = np.flatnonzero(asked)
        exposed = roster.movable & roster.exposed
        if not self.trial.policy.consolidation:
            exposed &= (roster.allowance > 0)[roster.team]
        slots = np.flatnonzero(exposed)
        if not len(numbers) or not len(slots):
            return found
        tree, team = quota.tree, self.team[numbers]
        # Whoever has the same team and rank, and stays within what the same parts of its path own, may ask the same.
        marks = team
        for nodes in tree.levels:
            node = nodes[team]
            marks = marks * 2 + (tree.used[node] + self.total[numbers] <= tree.nominal[node])
        _, first, row_of = np.unique(marks * 2**17 + self._rank[numbers], return_index=True, return_inverse=True)
        team, chosen = team[first], numbers[first]
        sides = tree.against_all()[team]
        own = np.arange(len(quota.teams))[None, :] == team[:, None]
        within = tree.used[sides] + self.total[chosen, None] <= tree.nominal[sides]
        borrowing = (tree.over_all() > 0)[team]
        lower = own | borrowing | within
        rank = self._rank[chosen, None]
        below = np.where(lower, rank, -1)
        if self.trial.policy.consolidation:  # who may be moved: anybody of no higher base priority
            below = np.broadcast_to((rank // LEVELS_APART + 1) * LEVELS_APART, below.shape)
        below = np.where(~own & borrowing & within, np.iinfo(np.int64).max, below)
        ranks = roster.priority[slots] * LEVELS_APART + (LEVELS_APART - 1 - roster.level[slots])
        helpful = below[:, roster.team[slots]] > ranks[None, :]
        found[numbers] = self._cured(numbers, row_of.reshape(-1), helpful, slots)
        numbers, row_of = numbers[found[numbers]], row_of.reshape(-1)[found[numbers]]
        for pool in np.unique(self.pool[numbers]).tolist():
            mine = self.pool[numbers] == pool
            found[numbers[mine]] = self._held_back(pool, numbers[mine], row_of[mine], helpful, slots)
        return found

    def _cured(self, numbers: Ints, row_of: Ints, helpful: Bools, slots: Ints) -> Bools:
        """Which of these might come under their limits: what is missing is no more than all of those would give up.

        Whoever leaves, makes room in a tree; what a team owns, and the limits of a team that is in no tree, count only
        its own gangs.
        """
        roster, quota = self.trial.roster, self.trial.quota
        devices = roster.devices[slots].astype(float)
        anybody = (helpful @ devices)[row_of]
        teams = np.zeros((len(slots), len(quota.teams)))
        teams[np.arange(len(slots)), roster.team[slots]] = devices
        own = (helpful @ teams)[row_of, self.team[numbers]]
        total = self.total[numbers]
        within = total <= self._borrowable()[numbers] + (anybody if quota.tree.nested else own)
        return np.asarray(within & (total <= self._owned()[numbers] + own), bool)

    def _held_back(self, pool: int, numbers: Ints, row_of: Ints, helpful: Bools, slots: Ints) -> Bools:
        """Which of these classes of one resource pool find enough nodes among what is free soon or could be had."""
        trial, fleet = self.trial, self.trial.fleet
        snapshot = trial.snapshot
        column = np.full(len(trial.roster.team) + 1, -1, np.int64)
        column[slots] = np.arange(len(slots))
        there = trial.usable & self.pools[pool].mask & (snapshot.next_holder < 0) & (column[snapshot.holder] >= 0)
        taken = np.flatnonzero(there)
        pairs, counts = np.unique(
            fleet.device_node[taken] * len(slots) + column[snapshot.holder[taken]], return_counts=True
        )
        free = trial.view(trial.soon, self.order.classes[int(numbers[0])], ()).node_free
        nodes, starts = np.unique(pairs // len(slots), return_index=True)
        rows, place = np.unique(row_of, return_inverse=True)
        most = int(self.devices[numbers].max())
        if len(nodes):
            had = helpful[rows][:, pairs % len(slots)] * counts.astype(np.int16)[None, :]
            reach = np.add.reduceat(had, starts, axis=1) + free[nodes].astype(np.int16)[None, :]
        else:
            reach = np.zeros((len(rows), 0), np.int16)
        elsewhere = np.ones(len(free), bool)
        elsewhere[nodes] = False
        apart = np.bincount(np.minimum(free[elsewhere], most), minlength=most + 1)
        able = np.zeros((len(rows), most + 1), np.int64)
        for devices in np.unique(self.devices[numbers]).tolist():
            able[:, devices] = (reach >= devices).sum(axis=1) + int(apart[devices:].sum())
        return np.asarray(able[place.reshape(-1), self.devices[numbers]] >= self.members[numbers], bool)


@lru_cache(maxsize=1024)
def unpacked(bits: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(index for index in range(bits.bit_length()) if bits >> index & 1)
