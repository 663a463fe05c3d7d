"""May this gang start? Asked of devices that are free, of devices kept for the head of line that it may pass on
condition, of devices whose holders are leaving, and of gangs that it may ask to make room; in that order.

What failed is remembered until something that it depends on changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from dsec_workers.scheduling.clearing import Clearing
from dsec_workers.scheduling.cost import UNITS, overhead_seconds
from dsec_workers.scheduling.decisions import Admit, Recall
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.making_way import evicted, moved, shrunk
from dsec_workers.scheduling.options import How
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Seats, Shape, find_seats, fits, pick_devices, placement_of
from dsec_workers.scheduling.reservations import Reservations
from dsec_workers.scheduling.room import Room, view_of
from dsec_workers.scheduling.shadow import Kept, expected_runtime, held_longest, kept_devices
from dsec_workers.scheduling.trial import Trial
from dsec_workers.scheduling.victims import Chosen, Search


@dataclass(slots=True)
class Effect:
    """What an admission changed, beside taking devices: what remembered failures depend on."""

    teams: frozenset[int]
    """Teams that lost gangs to it."""
    surplus: bool
    """Its victims leave more than it takes."""
    kept_changed: bool


class Attempts:
    """Attempts in one trial, and what is remembered of those that failed."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.reservations = Reservations(trial, self._kept_moved)
        self.preemptions = 0
        self.search_left = trial.policy.cycle_search_budget
        self._no_room: dict[bool, set[object]] = {True: set(), False: set()}
        """Shapes that fit nowhere, in free devices (True) and in those with leaving gangs' devices (False)."""
        self._no_victims: set[object] = set()

    def attempt(self, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        """Admit gang `number` of class `kind` if anything allows it, and enter that in the trial."""
        trial, request = self.trial, kind.request
        if request.devices == 0:
            return self._without_devices(number, kind)
        least = kind.least
        if trial.quota.user_room(kind.team, kind.user) < least.total:
            return None
        if trial.quota_allows(kind, least.total):
            for room in (trial.free, trial.soon):
                found = self._in_room(room, number, kind)
                if found is not None:
                    return found
        if kind.leaving_for or self.preemptions >= trial.policy.max_preemptions or self.search_left <= 0:
            return None
        return self._by_eviction(number, kind)

    def forget_failures(self, *, room: bool) -> None:
        """Others may be evicted now; with `room`, leaving gangs left something over."""
        self._no_victims.clear()
        if room:
            self._no_room[False].clear()

    def _kept_moved(self) -> None:
        for failures in (*self._no_room.values(), self._no_victims):
            failures.clear()

    def clear(self, number: int, kind: GangClass) -> list[Recall]:
        """Whom a gang that asks for no device, and fits nowhere, has told to leave; entered in the trial."""
        trial = self.trial
        if kind.leaving_for or self.preemptions >= trial.policy.max_preemptions or self.search_left <= 0:
            return []
        avoided = trial.avoided(kind, number, by_contract=False)
        key = (kind.pool.label, kind.least, kind.request.priority, avoided, kind.evicted_for)
        if key in self._no_victims:
            return []
        budget = min(trial.policy.search_budget, self.search_left)
        search = Clearing(trial, kind, number, budget)
        chosen = search.run()
        self.search_left -= budget - max(0, search.budget.left)
        if not chosen:
            self._no_victims.add(key)
            return []
        self.preemptions += 1
        for option in chosen:
            trial.make_way(option, trial.held_by(option.slot))
        trial.forget_answers()
        start = self.reservations.keep_cleared(number, kind, avoided)
        run_id, roster = trial.queue[number].run_id, trial.roster
        return [
            Recall(
                run_id=roster.gang(option.slot).run_id,
                for_run=run_id,
                start=trial.now if start is None else start,
                cost=option.cost / UNITS,
                passed=False,
            )
            for option in chosen
        ]

    # ---- in room ----------------------------------------------------------------------------------------------

    def _without_devices(self, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        trial = self.trial
        seats = trial.host_seats(kind, trial.hosts_without_devices(kind, number), trial.saved(number))
        if seats is None:
            return None
        nothing = [np.empty(0, np.int64)] * kind.request.nodes
        return self._enter(number, kind, seats, nothing, why="asks for no GPU")

    def _in_room(self, room: Room, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        trial, free = self.trial, room is self.trial.free
        avoided = trial.avoided(kind, number, by_contract=free)
        found = self._seats(room, number, kind, avoided)
        why = "fits in free devices" if free else "fits once gangs that are leaving have left"
        if found is not None:
            return self._enter(number, kind, *found, why=why)
        passable = self._passable(number, kind, avoided) if free else set()
        if not passable:
            return None
        found = self._seats(room, number, kind, tuple(index for index in avoided if index not in passable))
        if found is None:
            return None
        taken = np.concatenate(found[1])
        used = [index for index in passable if self._uses(trial.kept[index], kind.least, found[0].nodes, taken)]
        until = min(trial.kept[index].start for index in used or passable)
        trial.conditional[trial.queue[number].run_id] = until
        return self._enter(number, kind, *found, why="passes the head of line on condition")

    def _uses(self, keep: Kept, shape: Shape, nodes: Ints, taken: Ints) -> bool:
        """Whether who takes these devices on these nodes has any that are kept, or leaves the holder too little."""
        if keep.mask[taken].any():
            return True
        left = self.trial.beside.left_by([keep])
        return left is not None and not bool(left.able(shape.cpu_milli, shape.memory_mib)[nodes].all())

    def _passable(self, number: int, kind: GangClass, avoided: tuple[int, ...]) -> set[int]:
        """Shadows so far ahead that an evictable gang without a contract may use their devices until then."""
        if not kind.request.evictable:
            return set()
        trial, gang = self.trial, self.trial.queue[number]
        overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, trial.policy)
        leaving = trial.policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
        least = max(leaving, trial.policy.conditional_worth * overhead) + kind.request.grace_seconds
        return {
            index
            for index in avoided
            if not (keep := trial.kept[index]).pledge
            and keep.start - trial.now >= least
            and keep.run_id not in kind.never_evicted_by
        }

    def _seats(
        self, room: Room, number: int, kind: GangClass, avoided: tuple[int, ...]
    ) -> tuple[Seats, list[Ints]] | None:
        trial, shape = self.trial, kind.least
        key = (kind.pool.label, shape, avoided)
        failures = self._no_room[room is trial.free]
        if key in failures:
            return None
        view = trial.view(room, kind, avoided)
        for tier in kind.pool.tiers or (None,):
            part = view if tier is None else view_of(trial.fleet, view.free & tier, view.hosts)
            seats = find_seats(trial.fleet, part, shape, trial.saved(number), trial.against)
            if seats is not None:
                return seats, pick_devices(trial.fleet, self._held_first(part.free, seats, shape), seats, shape)
        failures.add(key)
        return None

    def _held_first(self, ready: Bools, seats: Seats, shape: Shape) -> Bools:
        """`ready` less free devices that a member can do without, on nodes that somebody has to leave for it first.

        It is told to start when the holders of its devices have left: so it takes theirs, where it has the choice.
        """
        trial = self.trial
        if not trial.beside.counts(shape):
            return ready
        able = trial.free.hosts.able(shape.cpu_milli, shape.memory_mib)[seats.nodes]
        short = Seats(seats.nodes[~able], seats.islands[~able])
        return held_longest(trial.fleet, ready, short, shape, np.where(trial.free.free, 0.0, 1.0))

    # ---- by asking others to make room ------------------------------------------------------------------------

    def _by_eviction(self, number: int, kind: GangClass) -> tuple[Admit, Effect] | None:
        trial, shape = self.trial, kind.least
        avoided = trial.avoided(kind, number, by_contract=False)
        keeper = number if number in trial.keepers else None
        team, priority, past = kind.team, kind.request.priority, (kind.level, kind.evicted_for)
        key = (kind.pool.label, shape, team, priority, kind.request.evictable, avoided, past)
        if key in self._no_victims and keeper is None:
            return None
        rights = trial.rights(kind, number, shape.total)
        who = (team, priority, rights.within.tobytes(), keeper, past)
        if who not in trial.candidates:
            trial.candidates[who] = rights.candidates()
        allowed = trial.candidates[who]
        helpful = allowed | rights.may_move
        if not helpful.any() or not self._reachable(kind, avoided, who, helpful, shape):
            self._no_victims.add(key)
            return None
        view = trial.view(trial.soon, kind, avoided)
        budget = min(trial.policy.search_budget, self.search_left)
        counts, keeps = trial.beside.counts(shape), [trial.kept[index] for index in avoided]
        search = Search(
            fleet=trial.fleet,
            view=view,
            usable=trial.usable & trial.mask(kind, avoided),
            shape=shape,
            rights=rights,
            allowed=allowed,
            free_now=trial.free.free & ~kept_devices(trial.kept, trial.fleet.size),
            hosts_now=lambda: trial.hosts_for(trial.free, tuple(range(len(trial.kept)))),
            against=trial.against,
            budget=budget,
            exact=trial.policy.exact_candidates,
            tenants=trial.beside.tenants if counts else None,
            left_once=(lambda gone: trial.beside.left_by(keeps, gone)) if counts and keeps else None,
        )
        chosen = search.run()
        self.search_left -= budget - max(0, search.budget.left)
        seats = None
        if chosen is None or not chosen.options:
            if not search.exhaustive or search.budget.left < 0:
                trial.cut_short.add(trial.queue[number].run_id)
        else:
            freed = view.free | search.freed(chosen.options)
            hosts = search.hosts_after(chosen.options)
            for home in chosen.homes:  # where those go that move is theirs
                freed[np.concatenate(home.devices)] = False
                if hosts is not None:
                    hosts.take(trial.roster.gang(home.slot).request, home.seats.nodes)
            view = view_of(trial.fleet, freed, hosts)
            seats = find_seats(trial.fleet, view, shape, trial.saved(number), trial.against)
        if chosen is None or seats is None or not search.minimal(chosen.options):
            self._no_victims.add(key)
            return None
        self.preemptions += 1
        cost = sum(option.cost for option in chosen.options) / UNITS
        why = f"cheapest of the gangs it may evict: {len(chosen.options)} for {cost:.0f} device-seconds"
        devices = pick_devices(trial.fleet, self._held_first(freed, seats, shape), seats, shape)
        gone = [
            search.menu.devices_of(option) if option.how is How.SHRINK else trial.held_by(option.slot)
            for option in chosen.options
        ]
        return self._enter(number, kind, seats, devices, why=why, chosen=chosen, gone=gone)

    def _reachable(self, kind: GangClass, avoided: tuple[int, ...], who: object, helpful: Bools, shape: Shape) -> bool:
        """Whether the gang would fit if all that could make room were gone: no search is needed to say no."""
        trial, key = self.trial, (kind.pool.label, avoided, who)
        if key not in trial.reach:
            holder = trial.snapshot.holder
            there = trial.usable & (holder >= 0) & (trial.snapshot.next_holder < 0) & helpful[holder]
            trial.reach[key] = view_of(trial.fleet, trial.mask(kind, avoided) & (there | trial.soon.free))
        if (key, shape) not in trial.fits:
            trial.fits[key, shape] = fits(trial.fleet, trial.reach[key], shape)
        return trial.fits[key, shape]

    def _leaving_first(self, seats: Seats, kind: GangClass) -> set[int]:
        """Slots of those that are leaving its nodes, where it needs what they use there beside their devices."""
        trial, shape = self.trial, kind.least
        if not trial.beside.counts(shape):
            return set()
        short = seats.nodes[~trial.free.hosts.able(shape.cpu_milli, shape.memory_mib)[seats.nodes]]
        on = trial.beside.slots_on(short).tolist()
        return {slot for slot in on if trial.slots.evicting[slot] or trial.beside.is_told(slot)}

    # ---- entering an admission --------------------------------------------------------------------------------

    def _enter(
        self,
        number: int,
        kind: GangClass,
        seats: Seats,
        devices: list[Ints],
        *,
        why: str,
        chosen: Chosen = Chosen((), True),
        gone: Sequence[Ints] = (),
    ) -> tuple[Admit, Effect]:
        trial = self.trial
        gang, taken = trial.queue[number], np.concatenate(devices)
        asked = [option.slot for option in chosen.options]
        holders = {int(slot) for slot in trial.snapshot.holder[taken] if slot >= 0} - set(asked)
        holders |= self._leaving_first(seats, kind) - set(asked)
        for option, numbers in zip(chosen.options, gone, strict=True):
            trial.make_way(option, numbers)
        for home in chosen.homes:
            trial.move_in(home)
        end = trial.now + expected_runtime(kind.request, trial.policy, learned=gang.expected_seconds)
        trial.take(number, kind, taken, seats.nodes, min(end, trial.conditional.get(gang.run_id, inf)))
        admit = Admit(
            run_id=gang.run_id,
            placement=placement_of(trial.fleet, seats, devices),
            victims=evicted(trial, chosen),
            resizes=shrunk(trial, chosen, gang.run_id),
            moves=moved(trial, chosen, gang.run_id),
            optimal=chosen.optimal,
            why=why,
            waits_for=tuple(sorted(trial.roster.gang(slot).run_id for slot in holders)),
        )
        trial.forget_answers()
        surplus = trial.left_over(asked)
        lost = frozenset(int(trial.roster.team[o.slot]) for o in chosen.options if o.how is not How.MOVE)
        return admit, Effect(
            teams=lost, surplus=surplus, kept_changed=self.reservations.settle(number, bool(chosen.options))
        )
