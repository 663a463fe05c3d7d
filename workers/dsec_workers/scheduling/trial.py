"""One cycle's working state: copies of the snapshot's arrays, changed by every admission, dropped at the end.

`attempt` answers for one waiting gang: an `Admit` that has already been entered here, or None. In that order it
looks at devices that are free, at devices kept for the head of line that it may pass on condition, at devices whose
holders are leaving, and at gangs it may evict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.cost import UNITS, overhead_seconds
from dsec_workers.scheduling.decisions import Admit, Shadow, Victim
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Seats, Shape, cpu_seats, find_seats, fits, pick_devices, placement_of
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.rights import Claim, Rights, Roster
from dsec_workers.scheduling.room import Room, View, view_of
from dsec_workers.scheduling.shadow import Kept, earliest, expected_runtime, free_times
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot
from dsec_workers.scheduling.victims import Search


def least_shape(request: GangRequest) -> Shape:
    """The smallest shape a request accepts."""
    return Shape(request.min_nodes or request.nodes, request.devices_per_node, request.topology)


@dataclass(slots=True)
class Effect:
    """What an admission changed, beside taking devices: what remembered failures depend on."""

    teams: frozenset[int]
    """Teams that lost gangs to it."""
    surplus: bool
    """Its victims leave more than it takes."""
    kept_changed: bool


class Trial:
    """See the module. `queue` numbers are those of `Order`."""

    def __init__(
        self, snapshot: Snapshot, queue: Sequence[QueuedGang], quota: Quota, policy: Policy, now: float
    ) -> None:
        self.snapshot, self.fleet, self.queue = snapshot, snapshot.fleet, queue
        self.quota, self.policy, self.now = quota, policy, now
        self.roster = Roster(snapshot, quota, policy, now)
        fleet = self.fleet
        self._nobody: Bools = np.zeros(len(self.roster.team), bool)
        self.closed: Bools = np.array([name in snapshot.frozen.nodes for name in fleet.nodes], bool)
        open_devices = fleet.device_usable & ~self.closed[fleet.device_node]
        self.usable: Bools = open_devices
        leaving = np.array([gang is not None and gang.evicting for gang in snapshot.running] or [False], bool)
        unheld = (snapshot.holder < 0) & (snapshot.next_holder < 0)
        soon = (snapshot.holder >= 0) & leaving[snapshot.holder] & (snapshot.next_holder < 0)
        self.free = Room(fleet, open_devices & unheld)
        self.soon = Room(fleet, open_devices & (unheld | soon))
        self.times: Floats = free_times(snapshot, self.closed, policy, now)
        self.load = self._members_per_node()
        self.kept: list[Kept] = []
        self.preemptions = 0
        self.conditional: dict[str, float] = {}
        self.cut_short: set[str] = set()
        self._no_room: dict[bool, set[object]] = {True: set(), False: set()}
        """Shapes that fit nowhere, in free devices (True) and in those with leaving gangs' devices (False)."""
        self._no_victims: set[object] = set()
        # Answers that hold until the next admission.
        self._fits: dict[object, bool] = {}
        self._avoided: dict[object, tuple[int, ...]] = {}
        self._candidates: dict[object, Bools | None] = {}
        self._reach: dict[object, View] = {}
        self._keepers: frozenset[int] = frozenset()
        self._pool_masks: dict[str, Bools] = {}
        self._shapes: dict[str, Shape] = {}

    def _members_per_node(self) -> Ints:
        load = np.zeros(len(self.fleet.nodes), np.int64)
        for gang in self.snapshot.gangs():
            for member in gang.placement.members:
                number = self.fleet.node_number.get(member.node)
                if number is not None:
                    load[number] += 1
        return load

    # ---- what may be used -------------------------------------------------------------------------------------

    def mask(self, kind: GangClass, avoided: tuple[int, ...]) -> Bools:
        """Devices of the class's resource pool without what is kept for others."""
        mask = kind.pool.mask
        for index in avoided:
            mask = mask & ~self.kept[index].mask
        return mask

    def view(self, room: Room, kind: GangClass, avoided: tuple[int, ...]) -> View:
        """The devices of `room` that the class may use."""
        return room.view((kind.pool.label, avoided), lambda: self.mask(kind, avoided))

    def rights(self, kind: GangClass, number: int, devices: int) -> Rights:
        """The class's rights as the trial stands; `number` tells whose passers it may evict."""
        conditional = self._nobody
        if number in self._keepers:
            conditional = np.zeros(len(self.roster.team), bool)
            for keep in self.kept:
                if keep.number == number and not keep.pledge:
                    holders = self.snapshot.holder[keep.devices]
                    conditional[holders[holders >= 0]] = True
            conditional &= self.roster.due
        claim = Claim(
            team=kind.team,
            priority=kind.request.priority,
            devices=devices,
            request=kind.request,
        )
        return Rights.of(claim, self.roster, self.quota, conditional)

    def avoided(self, kind: GangClass, number: int, *, by_contract: bool = True) -> tuple[int, ...]:
        """Indices in `kept` that bind this gang: not its own, none whose holder it could evict, none it ends before."""
        if not self.kept:
            return ()
        limit = kind.request.max_runtime_seconds if by_contract else None
        key = (kind.team, kind.request.priority, kind.least.total, limit)
        found = self._avoided.get(key)
        if found is None:
            end = inf if limit is None else self.now + limit
            found = self._avoided[key] = tuple(
                index
                for index, keep in enumerate(self.kept)
                if (keep.pledge or end > keep.start) and not self._overrules(kind, kind.least.total, keep)
            )
        if number in self._keepers:
            return tuple(index for index in found if self.kept[index].number != number)
        return found

    def _overrules(self, kind: GangClass, devices: int, keep: Kept) -> bool:
        """Whether the class could evict the holder of what is kept, were it running already."""
        if not keep.request.evictable:
            return False
        quota, own = self.quota, keep.team == kind.team
        lower = keep.request.priority < kind.request.priority
        if own:
            return lower
        within = bool(quota.within(kind.team, devices)[keep.team])
        borrowing = all(over + keep.request.devices > 0 for _, over in quota.steps_over(keep.team, kind.team))
        return (lower and (borrowing or within)) or (borrowing and within)

    # ---- one gang ---------------------------------------------------------------------------------------------

    def quota_allows(self, kind: GangClass, devices: int) -> bool:
        """Whether the team, and the person, may use so many more devices for such a gang."""
        room = self.quota.ceiling(kind.team, kind.request) - int(self.quota.used[kind.team])
        return devices <= min(room, self.quota.user_room(kind.team, kind.user))

    def attempt(self, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        """Admit gang `number` of class `kind` if anything allows it, and enter that here."""
        request = kind.request
        if request.devices == 0:
            return self._without_devices(number, kind)
        least = kind.least
        of_person = self.quota.user_room(kind.team, kind.user)
        if of_person < least.total:
            return None
        room_in_quota = min(of_person, self.quota.ceiling(kind.team, request) - int(self.quota.used[kind.team]))
        most = min(request.nodes, room_in_quota // request.devices_per_node)
        if most >= least.members:
            for room in (self.free, self.soon):
                found = self._in_room(room, number, kind, least.members, most)
                if found is not None:
                    return found
        if kind.leaving_for or self.preemptions >= self.policy.max_preemptions:
            return None
        return self._by_eviction(number, kind, least)

    def fits_now(self, number: int, kind: GangClass) -> bool:
        """Whether it would start in room that is free, were it not for something else; changes nothing."""
        if kind.request.devices == 0:
            return bool((self.fleet.node_schedulable & ~self.closed).any())
        shape = kind.least
        if not self.quota_allows(kind, shape.total):
            return False
        avoided = self.avoided(kind, number)
        key = (kind.pool.label, shape, avoided)
        if key not in self._fits:
            self._fits[key] = fits(self.fleet, self.view(self.free, kind, avoided), shape)
        return self._fits[key]

    def fits_without(self, run_id: str, number: int, kind: GangClass) -> bool:
        """Whether it would start in free room if that gang were gone."""
        slot, shape = self.snapshot.slots[run_id], kind.least
        gang = self.roster.gang(slot)
        back = len(gang.placement.devices) if self.quota.number[gang.team] == kind.team else 0
        mask = self.mask(kind, self.avoided(kind, number))
        freed = (self.free.free | (self.usable & (self.snapshot.holder == slot))) & mask
        return self.quota_allows(kind, shape.total - back) and fits(self.fleet, view_of(self.fleet, freed), shape)

    def fits_if_opened(self, number: int, kind: GangClass) -> bool:
        """Whether it would start in free room if no node were closed."""
        unheld = (self.snapshot.holder < 0) & (self.snapshot.next_holder < 0) & self.fleet.device_usable
        shape = kind.least
        mask = self.mask(kind, self.avoided(kind, number))
        opened = (self.free.free | (unheld & self.closed[self.fleet.device_node])) & mask
        return fits(self.fleet, view_of(self.fleet, opened), shape)

    def least_exposed_priority(self, team: int) -> int | None:
        """The lowest base priority among the team's gangs that others might evict; None when there are none."""
        roster = self.roster
        found = roster.priority[roster.movable & roster.exposed & (roster.team == team)]
        return int(found.min()) if len(found) else None

    def _without_devices(self, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        seats = cpu_seats(self.fleet.node_schedulable & ~self.closed, self.load, kind.request.nodes)
        if seats is None:
            return None
        nothing = [np.empty(0, np.int64)] * kind.request.nodes
        return self._enter(number, kind, seats, nothing, why="asks for no GPU")

    def _in_room(self, room: Room, number: int, kind: GangClass, least: int, most: int) -> tuple[Admit, Effect] | None:
        avoided = self.avoided(kind, number, by_contract=room is self.free)
        found = self._seats(room, kind, avoided, least, most)
        why = "fits in free devices" if room is self.free else "fits once gangs that are leaving have left"
        if found is not None:
            return self._enter(number, kind, *found, why=why)
        passable = self._passable(number, kind, avoided) if room is self.free else set()
        if not passable:
            return None
        strict = tuple(index for index in avoided if index not in passable)
        found = self._seats(room, kind, strict, least, most)
        if found is None:
            return None
        taken = np.concatenate(found[1])
        until = min(self.kept[index].start for index in passable if self.kept[index].mask[taken].any())
        self.conditional[self.queue[number].run_id] = until
        return self._enter(number, kind, *found, why="passes the head of line on condition")

    def _passable(self, number: int, kind: GangClass, avoided: tuple[int, ...]) -> set[int]:
        """Shadows so far ahead that an evictable gang without a contract may use their devices until then."""
        if not kind.request.evictable:
            return set()
        gang = self.queue[number]
        overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, self.policy)
        least = self.policy.conditional_worth * overhead + kind.request.grace_seconds
        return {i for i in avoided if not self.kept[i].pledge and self.kept[i].start - self.now >= least}

    def _seats(
        self, room: Room, kind: GangClass, avoided: tuple[int, ...], least: int, most: int
    ) -> tuple[Seats, list[Ints]] | None:
        key = (kind.pool.label, kind.least, avoided)
        if key in self._no_room[room is self.free]:
            return None
        view = self.view(room, kind, avoided)
        low, high = least, most
        shape = kind.least if most == least else replace(kind.least, members=most)
        seats = find_seats(self.fleet, view, shape)
        if seats is None and most > least:
            if not fits(self.fleet, view, replace(kind.least, members=least)):
                high = 0
            while low < high - 1:  # the most members that fit: fewer always fit when more do
                middle = (low + high) // 2
                low, high = (
                    (middle, high) if fits(self.fleet, view, replace(kind.least, members=middle)) else (low, middle)
                )
            seats = find_seats(self.fleet, view, replace(kind.least, members=low)) if high else None
        if seats is None:
            self._no_room[room is self.free].add(key)
            return None
        return seats, pick_devices(self.fleet, view.free, seats, replace(kind.least, members=len(seats.nodes)))

    def _by_eviction(self, number: int, kind: GangClass, shape: Shape) -> tuple[Admit, Effect] | None:
        avoided = self.avoided(kind, number, by_contract=False)
        holds_shadow = number in self._keepers
        team, priority = kind.team, kind.request.priority
        key = (kind.pool.label, shape, team, priority, kind.request.evictable, avoided)
        if key in self._no_victims and not holds_shadow:
            return None
        rights = self.rights(kind, number, shape.total)
        who = (team, priority, rights.within.tobytes(), number if holds_shadow else None)
        if who not in self._candidates:
            candidates = rights.candidates()
            self._candidates[who] = candidates if candidates.any() else None
        allowed = self._candidates[who]
        if allowed is None or not self._reachable(kind, avoided, who, allowed, shape):
            self._no_victims.add(key)
            return None
        search = Search(
            fleet=self.fleet,
            view=self.view(self.soon, kind, avoided),
            usable=self.usable & self.mask(kind, avoided),
            shape=shape,
            rights=rights,
            allowed=allowed,
            budget=self.policy.search_budget,
            exact=self.policy.exact_candidates,
        )
        chosen = search.run()
        if chosen is None or not chosen.slots:
            if not search.exhaustive or search.budget.left < 0:
                self.cut_short.add(self.queue[number].run_id)
            self._no_victims.add(key)
            return None
        freed = search.view.free | search.freed(chosen.slots)
        seats = find_seats(self.fleet, view_of(self.fleet, freed), shape)
        if seats is None or not search.minimal(chosen.slots):
            self._no_victims.add(key)
            return None
        self.preemptions += 1
        devices = pick_devices(self.fleet, freed, seats, shape)
        why = f"cheapest of the gangs it may evict: {len(chosen.slots)} for {search.key(chosen.slots)[0] / UNITS:.0f} "
        return self._enter(
            number, kind, seats, devices, why=why + "device-seconds", victims=chosen.slots, optimal=chosen.optimal
        )

    def _reachable(self, kind: GangClass, avoided: tuple[int, ...], who: object, allowed: Bools, shape: Shape) -> bool:
        """Whether the gang would fit if all it may evict were gone: no search is needed to say no."""
        key = (kind.pool.label, avoided, who)
        if key not in self._reach:
            holder = self.snapshot.holder
            there = self.usable & (holder >= 0) & (self.snapshot.next_holder < 0) & allowed[holder]
            self._reach[key] = view_of(self.fleet, self.mask(kind, avoided) & (there | self.soon.free))
        if (key, shape) not in self._fits:
            self._fits[key, shape] = fits(self.fleet, self._reach[key], shape)
        return self._fits[key, shape]

    # ---- entering an admission --------------------------------------------------------------------------------

    def _enter(
        self,
        number: int,
        kind: GangClass,
        seats: Seats,
        devices: list[Ints],
        *,
        why: str,
        victims: tuple[int, ...] = (),
        optimal: bool = True,
    ) -> tuple[Admit, Effect]:
        gang, taken = self.queue[number], np.concatenate(devices)
        holders = {int(slot) for slot in self.snapshot.holder[taken] if slot >= 0} - set(victims)
        waits_for = tuple(sorted(self.roster.gang(slot).run_id for slot in holders))
        self.free.take(taken[self.free.free[taken]])
        for slot in victims:
            self._leave(slot)
        self.soon.take(taken)
        np.add.at(self.load, seats.nodes, 1)
        self.quota.use(kind.team, len(taken), kind.user, asked=kind.request.devices)
        end = self.now + expected_runtime(kind.request, self.policy)
        self.times[taken] = min(end, self.conditional.get(gang.run_id, inf))
        admit = Admit(
            run_id=gang.run_id,
            placement=placement_of(self.fleet, seats, devices),
            victims=tuple(
                Victim(run_id=self.roster.gang(slot).run_id, cost=self.roster.cost(slot) / UNITS) for slot in victims
            ),
            optimal=optimal,
            why=why,
            waits_for=waits_for,
        )
        self._forget_answers()
        left_over = any(bool(self.soon.free[self.snapshot.holder == slot].any()) for slot in victims)
        return admit, Effect(
            teams=frozenset(int(self.roster.team[slot]) for slot in victims),
            surplus=left_over,
            kept_changed=self._settle_kept(number, bool(victims)),
        )

    def _leave(self, slot: int) -> None:
        """A victim's devices are promised or soon free; it counts for nobody any more."""
        gang = self.roster.gang(slot)
        self.roster.movable[slot] = False
        self.quota.use(int(self.roster.team[slot]), -int(self.roster.devices[slot]), gang.created_by)
        mine = np.flatnonzero((self.snapshot.holder == slot) & (self.snapshot.next_holder < 0))
        mine = mine[self.usable[mine]]
        self.times[mine] = self.now + gang.request.grace_seconds
        self.soon.give(mine)

    def _settle_kept(self, number: int, evicted: bool) -> bool:
        """Drop what is no longer kept for anybody; True when something kept has moved.

        That is what the gang that starts had, and what a team's quota no longer lets its holder use. The others are
        looked at again when devices of theirs are late, or when somebody leaves earlier than was foreseen.
        """
        if not self.kept:
            return False
        remaining = [keep for keep in self.kept if keep.number != number and (keep.pledge or self._may_use(keep))]
        changed = len(remaining) != len(self.kept)
        self.kept = remaining
        if changed or evicted or any(self._late(keep) for keep in self.kept):
            changed |= self.renew_all()
        if changed:
            self.kept_moved()
        return changed

    def _may_use(self, keep: Kept) -> bool:
        shape = self._shapes[keep.run_id]
        return int(self.quota.used[keep.team]) + shape.total <= self.quota.ceiling(keep.team, keep.request)

    def _late(self, keep: Kept) -> bool:
        return not keep.pledge and bool((self.times[keep.devices] > max(keep.start, self.now)).any())

    def kept_moved(self) -> None:
        """Views and failures that depend on what is kept are out of date."""
        self.free.forget_views()
        self.soon.forget_views()
        self._keepers = frozenset(keep.number for keep in self.kept)
        self._forget_answers()
        for failures in (*self._no_room.values(), self._no_victims):
            failures.clear()

    def _forget_answers(self) -> None:
        for answers in (self._fits, self._avoided, self._candidates, self._reach):
            answers.clear()

    def forget_failures(self, *, room: bool) -> None:
        """Others may be evicted now; with `room`, leaving gangs left something over."""
        self._no_victims.clear()
        if room:
            self._no_room[False].clear()

    # ---- shadows ----------------------------------------------------------------------------------------------

    def others_kept(self, keep_number: int) -> Bools:
        """Devices kept for any other gang."""
        mask = np.zeros(self.fleet.size, bool)
        for keep in self.kept:
            if keep.number != keep_number:
                mask |= keep.mask
        return mask

    def cast_shadow(self, number: int, kind: GangClass) -> bool:
        """Reserve the earliest future place for the head of its resource pool; False when the forecast has none."""
        found = earliest(self.fleet, self.times, kind.pool.mask & ~self.others_kept(number), kind.least)
        if found is None:
            return False
        start, _, devices = found
        taken = np.concatenate(devices)
        self._keep(number, kind, start, self.now, taken)
        self.kept_moved()
        return True

    def restore_shadow(self, shadow: Shadow, number: int, kind: GangClass) -> None:
        """Take a shadow over from the last cycle, unless its team's quota no longer lets the holder use it.

        Call `renew_all` once all are restored.
        """
        if not self.quota_allows(kind, kind.least.total):
            return
        known = [self.fleet.device_number[uuid] for uuid in shadow.devices if uuid in self.fleet.device_number]
        whole = len(known) == len(shadow.devices) == kind.least.total
        start = shadow.start if whole else -inf  # late by definition: looked for again
        self._keep(number, kind, start, shadow.since, np.array(known, np.int64))

    def renew_all(self) -> bool:
        """Move shadows earlier where they can be, later only where their devices are late; True when any moved.

        An earlier start of one makes room for another, so passes repeat while something moves, a bounded number of
        times.
        """
        moved = False
        for _ in range(len(self.kept) + 1):
            shadows = [keep for keep in self.kept if not keep.pledge]
            moves = [self._renew(keep) for keep in sorted(shadows, key=lambda k: (k.since, k.run_id))]
            if not any(moves):
                break
            moved = True
        return moved

    def _renew(self, keep: Kept) -> bool:
        late = keep.start == -inf or self._late(keep)
        mask = self._pool_masks[keep.run_id] & ~self.others_kept(keep.number)
        before = inf if late else keep.start
        found = earliest(self.fleet, self.times, mask, self._shapes[keep.run_id], before=before)
        if found is None:
            if late:
                self.kept.remove(keep)
            return late
        keep.start, keep.devices = found[0], np.concatenate(found[2])
        keep.mask = np.zeros(self.fleet.size, bool)
        keep.mask[keep.devices] = True
        return True

    def pledge(self, number: int, kind: GangClass, devices: Ints) -> None:
        """Room that gangs leave for a waiting gang is for nobody else."""
        self._keep(number, kind, inf, self.now, devices, pledge=True)

    def _keep(
        self, number: int, kind: GangClass, start: float, since: float, devices: Ints, *, pledge: bool = False
    ) -> None:
        mask = np.zeros(self.fleet.size, bool)
        mask[devices] = True
        run_id = self.queue[number].run_id
        self.kept.append(
            Kept(
                number=number,
                run_id=run_id,
                resource_pool=kind.pool.label,
                team=kind.team,
                request=kind.request,
                start=start,
                since=since,
                devices=devices,
                mask=mask,
                pledge=pledge,
            )
        )
        self._pool_masks[run_id] = kind.pool.mask
        self._shapes[run_id] = kind.least
