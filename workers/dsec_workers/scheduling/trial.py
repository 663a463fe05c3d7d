"""One cycle's working state: copies of the snapshot's arrays, changed by every admission, dropped at the end.

Here is what may be used by whom and what an admission changes; who is admitted is decided in `attempts`, what is kept
for whom in `reservations`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.beside import Beside
from dsec_workers.scheduling.consolidation import COMING, Home
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.options import How, Option, given_up
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Seats, Shape, cpu_seats
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.rights import Claim, Rights
from dsec_workers.scheduling.room import Room, View
from dsec_workers.scheduling.roster import Roster
from dsec_workers.scheduling.shadow import Kept, expected_end, free_times
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot
from dsec_workers.scheduling.tenants import nodes_of


def least_shape(request: GangRequest) -> Shape:
    """The smallest shape a request accepts (all of it, where it asks for no device).

    Equal shapes are one object, which makes looking them up cheap.
    """
    return _one_of(Shape.of(request, (request.devices and request.min_nodes) or request.nodes))


@lru_cache(maxsize=4096)
def _one_of(shape: Shape) -> Shape:
    return shape


class Trial:
    """See the module. `queue` numbers are those of `Order`."""

    def __init__(
        self,
        snapshot: Snapshot,
        slots: Slots,
        queue: Sequence[QueuedGang],
        quota: Quota,
        policy: Policy,
        now: float,
    ) -> None:
        self.snapshot, self.fleet, self.queue = snapshot, snapshot.fleet, queue
        self.quota, self.policy, self.now = quota, policy, now
        self.slots = slots
        self.roster = Roster(snapshot, slots, quota, policy, now)
        fleet = self.fleet
        self._nobody: Bools = np.zeros(len(self.roster.team), bool)
        self.closed: Bools = np.zeros(len(fleet.nodes), bool)
        for name in snapshot.frozen.nodes:
            if name in fleet.node_number:
                self.closed[fleet.node_number[name]] = True
        open_devices = fleet.device_usable & ~self.closed[fleet.device_node]
        self.usable: Bools = open_devices
        leaving = np.append(slots.evicting, False)
        unheld = (snapshot.holder < 0) & (snapshot.next_holder < 0)
        soon = (snapshot.holder >= 0) & leaving[snapshot.holder] & (snapshot.next_holder < 0)
        self.free = Room(fleet, open_devices & unheld, slots.beside)
        self.soon = Room(fleet, open_devices & (unheld | soon), slots.beside_staying)
        self.beside = Beside(snapshot, slots, slots.beside, policy, now)
        self.times: Floats = free_times(snapshot, slots, self.closed, policy, now)
        self.load: Ints = slots.load
        self.kept: list[Kept] = []
        """Devices kept for gangs that wait; `Reservations` changes it."""
        self.keepers: frozenset[int] = frozenset()
        """Numbers of those gangs."""
        self.conditional: dict[str, float] = {}
        self.cut_short: set[str] = set()
        """Gangs whose search for victims ended with its budget."""
        self.fits: dict[object, bool] = {}
        """Answers that hold until the next admission; so do those below."""
        self.against: Floats | None = self._failures()
        """Per node, what lately failed there weighs against it, in cards; None: nothing did."""
        self._saved: dict[tuple[tuple[str, float], ...], Floats] = {}
        self._avoided: dict[object, tuple[int, ...]] = {}
        self._bound: dict[object, tuple[int, ...]] = {}
        self._left: dict[tuple[int, ...], Hosts | None] = {}
        self._rights: dict[object, Rights] = {}
        self.candidates: dict[object, Bools] = {}
        self.reach: dict[object, View] = {}

    # ---- what may be used -------------------------------------------------------------------------------------

    def mask(self, kind: GangClass, avoided: tuple[int, ...]) -> Bools:
        """Devices of the class's resource pool without what is kept for others."""
        mask = kind.pool.mask
        for index in avoided:
            mask = mask & ~self.kept[index].mask
        return mask

    def view(self, room: Room, kind: GangClass, avoided: tuple[int, ...]) -> View:
        """The devices of `room` that the class may use."""
        view = room.view((kind.pool.label, avoided), lambda: self.mask(kind, avoided))
        if not avoided or room.hosts is None or not self.beside.counts(kind.least):
            return view
        return replace(view, hosts=self.hosts_for(room, avoided))

    def hosts_for(self, room: Room, avoided: tuple[int, ...]) -> Hosts:
        """What nodes have beside their devices for those that `avoided` binds."""
        if avoided not in self._left:
            self._left[avoided] = self.beside.left_by([self.kept[index] for index in avoided])
        return room.hosts.least(self._left[avoided])

    def hosts_without_devices(self, kind: GangClass, number: int) -> Hosts:
        """What nodes have for a gang that asks for no device."""
        if not self.kept or not self.beside.counts(kind.least):
            return self.free.hosts
        return self.hosts_for(self.free, self.avoided(kind, number))

    def host_seats(self, kind: GangClass, hosts: Hosts, saved: Floats | None = None) -> Seats | None:
        """Where a class that asks for no device fits beside what is used of `hosts`."""
        return cpu_seats(self.open_nodes, self.load, kind.least, hosts, saved, self.against)

    @property
    def open_nodes(self) -> Bools:
        """The nodes that take work."""
        return self.fleet.node_schedulable & ~self.closed

    def saved(self, number: int) -> Floats | None:
        """Per node, what the cache there is worth to gang `number`, less what speaks against the node, in cards."""
        pairs = self.queue[number].seconds_saved
        if not pairs:
            return self.worth
        saved = self._saved.get(pairs)
        if saved is None:
            saved = self._saved[pairs] = np.zeros(len(self.fleet.nodes))
            for name, seconds in pairs:
                if name in self.fleet.node_number:
                    saved[self.fleet.node_number[name]] = seconds / self.policy.cache_seconds_per_card
            if self.against is not None:
                saved -= self.against
        return saved

    @property
    def worth(self) -> Floats | None:
        """Per node, what it is worth to whoever has no data anywhere."""
        return None if self.against is None else -self.against

    def _failures(self) -> Floats | None:
        found, numbers = np.zeros(len(self.fleet.nodes)), self.fleet.node_number
        for name, count in self.snapshot.failures.items():
            if name in numbers:
                found[numbers[name]] = count * self.policy.failure_cards
        return found if found.any() else None

    def quota_allows(self, kind: GangClass, devices: int) -> bool:
        """Whether the team, and the person, may use so many more devices for such a gang."""
        room = self.quota.ceiling(kind.team, kind.request) - int(self.quota.used[kind.team])
        return devices <= min(room, self.quota.user_room(kind.team, kind.user))

    def may_keep(self, kind: GangClass) -> bool:
        """Whether a place may be kept for the class: its limits, which count devices, would let it in."""
        return not kind.least.total or self.quota_allows(kind, kind.least.total)

    def rights(self, kind: GangClass, number: int, devices: int) -> Rights:
        """The class's rights as the trial stands; `number` tells whose passers it may evict."""
        request, keeper = kind.request, number if number in self.keepers else None
        key = (
            kind.team, request.priority, devices, request.evictable, kind.level, kind.evicted_for, keeper,
            self.quota.is_lifted,
        )  # fmt: skip
        found = self._rights.get(key)
        if found is None:
            found = self._rights[key] = self._rights_of(kind, number, devices)
        return found

    def _rights_of(self, kind: GangClass, number: int, devices: int) -> Rights:
        conditional = self._nobody
        if number in self.keepers:
            conditional = np.zeros(len(self.roster.team), bool)
            for keep in self.kept:
                if keep.number == number and not keep.pledge:
                    holders = self.snapshot.holder[keep.devices]
                    conditional[holders[holders >= 0]] = True
                    if self.beside.counts(keep.shape):
                        conditional[self.beside.slots_on(keep.nodes)] = True
            conditional &= self.roster.due
        slots = self.snapshot.slots
        claim = Claim(
            team=kind.team,
            priority=kind.request.priority,
            devices=devices,
            request=kind.request,
            level=kind.level,
            spared=frozenset(slots[run_id] for run_id in kind.evicted_for if run_id in slots),
        )
        return Rights.of(claim, self.roster, self.quota, conditional)

    def avoided(self, kind: GangClass, number: int, *, by_contract: bool = True) -> tuple[int, ...]:
        """Indices in `kept` that bind this gang: not its own, none whose holder it could evict, none it ends before."""
        if not self.kept:
            return ()
        limit = kind.request.max_runtime_seconds if by_contract else None
        key = (kind.team, kind.request.priority, kind.least.total, limit, kind.level, kind.evicted_for)
        found = self._avoided.get(key)
        if found is None:
            end = inf if limit is None else self.now + limit
            kept = self.kept
            found = self._avoided[key] = tuple(
                index for index in self._binding(kind) if kept[index].pledge or end > kept[index].start
            )
        if number in self.keepers:
            return tuple(index for index in found if self.kept[index].number != number)
        return found

    def _binding(self, kind: GangClass) -> tuple[int, ...]:
        """Indices in `kept` of what the class must leave alone, unless its contract ends before."""
        key = (kind.team, kind.request.priority, kind.least.total, kind.evicted_for)
        found = self._bound.get(key)
        if found is None:
            found = self._bound[key] = tuple(
                index for index, keep in enumerate(self.kept) if not self._overrules(kind, kind.least.total, keep)
            )
        return found

    def _overrules(self, kind: GangClass, devices: int, keep: Kept) -> bool:
        """Whether the class could evict the holder of what is kept, were it running already.

        Who asks for no device evicts by base priority alone, and so goes before a head of line.
        """
        if not keep.request.evictable or keep.run_id in kind.evicted_for:
            return False
        quota, own = self.quota, keep.team == kind.team
        lower = keep.request.priority < kind.request.priority
        if own or not devices:
            return lower
        within = bool(quota.within(kind.team, devices)[keep.team])
        borrowing = all(over + keep.request.devices > 0 for _, over in quota.steps_over(keep.team, kind.team))
        return (lower and (borrowing or within)) or (borrowing and within)

    # ---- what an admission changes ----------------------------------------------------------------------------

    def take(self, number: int, kind: GangClass, devices: Ints, nodes: Ints, until: float) -> None:
        """These devices are gang `number`'s, which has a member on each of `nodes`; free ones leave every room."""
        self.free.take(devices[self.free.free[devices]])
        self.soon.take(devices)
        for room in (self.free, self.soon):
            room.take_beside(kind.request, nodes)
        self.beside.enter(self.queue[number].run_id, kind.request, nodes, until)
        np.add.at(self.load, nodes, 1)
        # An elastic gang that starts small still wants the rest, until what is left over has been dealt.
        self.quota.use(kind.team, len(devices), kind.user, asked=len(devices))
        self.times[devices] = until

    def make_way(self, option: Option, gone: Ints) -> None:
        """What the gang of `option` gives up (`gone`) is promised or soon free, and counts for nobody any more."""
        slot, gang = option.slot, self.roster.gang(option.slot)
        team = int(self.roster.team[slot])
        self.roster.movable[slot] = False
        self.roster.devices[slot] -= option.released
        if option.how is How.EVICT:
            self.roster.allowance[team] -= 1
        self.quota.use(team, -option.released, gang.created_by)
        self.quota.tree.strand(-self.roster.stranded_of(option))
        mine = gone[self.usable[gone] & (self.snapshot.next_holder[gone] < 0)]
        self.times[mine] = self.now + gang.request.grace_seconds
        self.soon.give(mine)
        nodes = nodes_of(self.fleet, given_up(gang, option))
        self.soon.take_beside(gang.request, nodes, -1)
        self.beside.told(slot, nodes, self.now + gang.request.grace_seconds)

    def move_in(self, home: Home) -> None:
        """A gang that was moved has its new devices."""
        devices = np.concatenate(home.devices)
        self.free.take(devices)
        self.soon.take(devices)
        np.add.at(self.load, home.seats.nodes, 1)
        gang = self.roster.gang(home.slot)
        until = expected_end(gang, self.policy, self.now)
        for room in (self.free, self.soon):
            room.take_beside(gang.request, home.seats.nodes)
        self.beside.enter(gang.run_id + COMING, gang.request, home.seats.nodes, until)
        self.times[devices] = until

    def held_by(self, slot: int) -> Ints:
        """The numbers of the devices that the gang in `slot` holds."""
        return np.flatnonzero(self.snapshot.holder == slot)

    def left_over(self, slots: Sequence[int]) -> bool:
        """Whether any of these leave devices that nobody has been promised, or processors or memory."""
        beside = self.slots.cpu_milli + self.slots.memory_mib
        return any(bool(beside[slot]) or bool(self.soon.free[self.held_by(slot)].any()) for slot in slots)

    def least_exposed_priority(self, team: int) -> int | None:
        """The lowest base priority among the team's gangs that others might evict; None when there are none."""
        roster = self.roster
        found = roster.priority[roster.movable & roster.exposed & (roster.team == team)]
        return int(found.min()) if len(found) else None

    def forget_answers(self) -> None:
        """Something was admitted, or what is kept has moved."""
        for answers in (self.fits, self._avoided, self._bound, self._rights, self.candidates, self.reach, self._left):
            answers.clear()
