"""Who makes room so that one gang fits, at the least cost: exact where that is affordable, and said so where not.

Per domain with few candidates a branch and bound looks at sets of options, cheapest per device first, under a lower
bound (fractional knapsack over the devices that are still missing); above, and for a first good answer, the domain is
filled node by node at the least further cost and trimmed backwards.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsec_workers.scheduling.bounds import cost_bound
from dsec_workers.scheduling.consolidation import Home, find_homes
from dsec_workers.scheduling.domains import Domain, Domains
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.greedy import Greedy
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.menu import Menu, Name
from dsec_workers.scheduling.options import How, Option, given_up
from dsec_workers.scheduling.placement import Shape, find_seats, fits, pick_devices
from dsec_workers.scheduling.rights import Rights
from dsec_workers.scheduling.room import View, view_of
from dsec_workers.scheduling.room_made import RoomMade
from dsec_workers.scheduling.tenants import Tenants, nodes_of

Key = tuple[int, int, int, tuple[float, ...], tuple[str, ...]]
GREEDY_FIRST = 8
"""From so many candidates on, a good answer is sought before the best, for its cost ends most of the search."""


@dataclass(slots=True)
class Budget:
    """Sets of victims that may still be looked at."""

    left: int

    def spend(self) -> bool:
        """Whether one more may be looked at."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who makes room and how, where those go that move, and whether no cheaper set exists."""

    options: tuple[Option, ...]
    optimal: bool
    homes: tuple[Home, ...] = ()


class Search:
    """One search for one claim.

    `usable` are the devices the gang may take once they are free, `allowed` the slots of `rights.candidates()`,
    `free_now` the devices that anybody who is moved may go to, `hosts_now` what such a gang finds beside them,
    `against` what speaks against each node, `tenants` those who use what the gang needs beside its devices (None where
    that does not count). `left_once` says what places kept for others leave of that once these slots have left those
    nodes: who is gone before such a holder starts in any case leaves no more by going now (None where none binds it).
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        view: View,
        usable: Bools,
        shape: Shape,
        rights: Rights,
        allowed: Bools,
        free_now: Bools,
        hosts_now: Callable[[], Hosts],
        against: Floats | None,
        budget: int,
        exact: int,
        tenants: Tenants | None = None,
        left_once: Callable[[Sequence[tuple[int, Ints]]], Hosts | None] | None = None,
    ) -> None:
        self.fleet, self.view, self.shape, self.rights = fleet, view, shape, rights
        self.budget, self.exact = Budget(budget), exact
        self.free_now, self.hosts_now, self.against = free_now, hosts_now, against
        self.left_once = left_once
        self.roster, snapshot = rights.roster, rights.roster.snapshot
        self.takeable: Bools = usable & ~view.free & (snapshot.holder >= 0) & (snapshot.next_holder < 0)
        if len(allowed):
            self.takeable &= (allowed | rights.may_move)[snapshot.holder]
        else:
            self.takeable[:] = False
        self.tenants = None if tenants is None else tenants.of_slots(allowed | rights.may_move)
        self.domains = Domains(fleet, view, shape, self.takeable, snapshot.holder, len(self.roster.team), self.tenants)
        self.menu = Menu(rights, allowed, self.domains.unit_of)
        self.relieving = rights.relieving(allowed)
        self.best: tuple[Key, tuple[int, ...]] | None = None
        self.exhaustive = True
        self._twins: list[int | None] = []

    def run(self) -> Chosen | None:
        """The cheapest choice; None when no admissible one makes the gang fit (or none was found in the budget)."""
        if not self.takeable.any() and not self.rights.shortage and self.tenants is None:
            return None
        if self.rights.is_out_of_reach(self.relieving):
            return None
        if not fits(self.fleet, view_of(self.fleet, self.view.free | self.takeable, self._most()), self.shape):
            return None
        for domain in self._domains():
            self._solve(domain)
            if self.budget.left < 0:
                break
        if self.best is None:
            return None
        numbers = self._trimmed(self.best[1])
        options = tuple(self.menu.all(numbers))
        optimal = self.exhaustive and self.budget.left >= 0 and not self.menu.partial
        return Chosen(options, optimal, tuple(self._homes(options) or ()))

    def key(self, numbers: Iterable[int]) -> Key:
        """What makes one choice better than another: cost, how many go back in line, number, newest, id."""
        options = self.menu.all(numbers)
        gangs = [self.roster.gang(option.slot) for option in options]
        return (
            sum(option.cost for option in options),
            sum(option.how is How.EVICT for option in options),
            len(options),
            tuple(sorted(-gang.started_at for gang in gangs)),
            tuple(sorted(gang.run_id for gang in gangs)),
        )

    def minimal(self, options: Collection[Option]) -> bool:
        """The last check before anybody is told: the gang fits, by right, and nobody can be left out."""
        if not self._holds(options):
            return False
        made = self._made_by(options)
        return not any(made.fits_without(out) and self._holds([o for o in options if o is not out]) for out in options)

    def freed(self, options: Collection[Option]) -> Bools:
        """The devices that these leave to the gang, over all devices."""
        whole = np.zeros(len(self.roster.team) + 1, bool)  # the last is nobody's: a device that nobody holds says −1
        whole[[option.slot for option in options if option.how is not How.SHRINK]] = True
        found: Bools = whole[self.roster.snapshot.holder]
        for option in options:
            if option.how is How.SHRINK:
                found[self.menu.devices_of(option)] = True
        return found & self.takeable

    def _made_by(self, options: Collection[Option]) -> RoomMade:
        """The room that these make, to see who of them could be left out."""
        made: dict[Option, Ints] = {}
        for option in options:
            held = self.roster.snapshot.holder == option.slot
            mine = self.menu.devices_of(option) if option.how is How.SHRINK else np.flatnonzero(held)
            made[option] = mine[self.takeable[mine]]
        return RoomMade(self.fleet, self.view, self.shape, made)

    def hosts_after(self, options: Collection[Option]) -> Hosts | None:
        """What the nodes have beside their devices once these have made room."""
        if self.view.hosts is None:
            return None
        hosts, gone = self.view.hosts.copy(), []
        for option in options:
            gang = self.roster.gang(option.slot)
            nodes = nodes_of(self.fleet, given_up(gang, option))
            hosts.take(gang.request, nodes, -1)
            gone.append((option.slot, nodes))
        return hosts if self.left_once is None else hosts.least(self.left_once(gone))

    def _most(self) -> Hosts | None:
        """The same once all have that may be asked to; None where it does not count."""
        if self.tenants is None or self.view.hosts is None:
            return None
        hosts = self.view.hosts.copy()
        self.tenants.leave(hosts)
        return hosts

    # ---- domains ----------------------------------------------------------------------------------------------

    def _domains(self) -> Iterator[Domain]:
        """The domains that could hold the gang, the most promising first, until they are too dear."""
        if self.shape.members == 1:
            who = self.domains.holders if self.tenants is None else np.append(self.domains.holders, self.tenants.slot)
            cheapest = {slot: self.menu.cheapest(slot) for slot in np.unique(who).tolist()}
            for least, domain in self.domains.singles(cheapest):
                if self.best is not None and least > self.best[0][0] + 1e-6:
                    return
                if self._prepared(domain):
                    yield domain
        else:
            yield from sorted(filter(self._prepared, self.domains.groups()), key=lambda d: d.bound)

    def _prepared(self, domain: Domain) -> bool:
        """Whether it can be made to hold the gang; its options are then in order."""
        self.menu.offer(domain, self.relieving)
        domain.order = sorted(domain.gains, key=lambda number: self._ratio(domain, number))
        bound = cost_bound(domain, self.menu, 0, domain.missing, domain.members)
        domain.bound = bound or 0.0
        return bound is not None

    def _ratio(self, domain: Domain, number: int) -> tuple[float, float, Name]:
        useful = domain.useful(domain.gains[number], domain.missing)
        option = self.menu[number]
        if number in domain.relief:
            useful += option.released
        started_at = self.roster.gang(option.slot).started_at
        return option.cost / max(useful, 0.5), -started_at, self.menu.name(number)

    def _solve(self, domain: Domain) -> None:
        if self._hopeless(domain.bound, ()):
            return
        small = len(domain.order) <= self.exact
        if not small or len(domain.order) > GREEDY_FIRST:
            for chosen in Greedy(domain, self.menu, self.budget, self._admissible, self._tolerable).choices():
                if self._holds(self.menu.all(chosen)):
                    self._offer(self._trimmed(chosen))
                    break
        if small:
            self._twins = self.menu.twins(domain)
            self._branch(domain, 0, (), 0, domain.missing, domain.members)
        else:
            self.exhaustive = False

    # ---- branch and bound -------------------------------------------------------------------------------------

    def _branch(
        self, domain: Domain, index: int, chosen: tuple[int, ...], cost: int, missing: dict[int, int], members: int
    ) -> None:
        if not self.budget.spend():
            return
        if members <= 0 and self._admissible(chosen):
            options = self.menu.all(chosen)
            if self._homes(options) is not None and (self.left_once is None or self._holds(options)):
                self._offer(chosen)
                return
            self.exhaustive = False  # in other seats it might have left room for those who move, or are kept a place
        if index == len(domain.order) or not self._relievable(domain, index, chosen):
            return
        bound = cost_bound(domain, self.menu, index, missing, members)
        if bound is None or self._hopeless(cost + bound, chosen):
            return
        number, twin = domain.order[index], self._twins[index]
        if (twin is None or twin in chosen) and self._tolerable((*chosen, number)):
            after, left = domain.without(missing, members, number)
            self._branch(domain, index + 1, (*chosen, number), cost + self.menu[number].cost, after, left)
        self._branch(domain, index + 1, chosen, cost, missing, members)

    def _relievable(self, domain: Domain, index: int, chosen: tuple[int, ...]) -> bool:
        """Whether the candidates that are left could still bring the team under its limit."""
        if not self.rights.shortage:
            return True
        rest = [number for number in (*chosen, *domain.order[index:]) if number in domain.relief]
        return sum(self.menu[number].released for number in rest) >= self.rights.shortage

    def _hopeless(self, cost: float, chosen: tuple[int, ...]) -> bool:
        """Whether nothing that adds at least one option to `chosen`, at no less than `cost`, can be the best."""
        if self.best is None:
            return False
        best, count = self.best[0], len(chosen) + 1
        evictions = count if not self.menu.has_milder else sum(self.menu[n].how is How.EVICT for n in chosen)
        return cost > best[0] + 1e-6 or (cost > best[0] - 1e-6 and (evictions, count) > best[1:3])

    def _offer(self, numbers: tuple[int, ...]) -> None:
        key = self.key(numbers)
        if self.best is None or key < self.best[0]:
            self.best = (key, numbers)

    # ---- checks -----------------------------------------------------------------------------------------------

    def _admissible(self, numbers: Collection[int]) -> bool:
        return self.rights.admissible(self.menu.all(numbers))

    def _tolerable(self, numbers: Collection[int]) -> bool:
        return self.rights.tolerable(self.menu.all(numbers))

    def _holds(self, options: Collection[Option]) -> bool:
        """Whether the gang fits once these have made room, and they may all be asked to."""
        if not self.rights.admissible(options):
            return False
        hosts = None if self.tenants is None else self.hosts_after(options)
        if not fits(self.fleet, view_of(self.fleet, self.view.free | self.freed(options), hosts), self.shape):
            return False
        return self._homes(options) is not None

    def _homes(self, options: Collection[Option]) -> list[Home] | None:
        """Where those go that are moved, beside the gang in its seats; None if they do not all fit."""
        movers = [(o.slot, self.roster.gang(o.slot)) for o in options if o.how is How.MOVE]
        if not movers:
            return []
        ready = self.view.free | self.freed(options)
        hosts = None if self.tenants is None else self.hosts_after(options)
        seats = find_seats(self.fleet, view_of(self.fleet, ready, hosts), self.shape)
        if seats is None:
            return None
        free = self.free_now.copy()
        for numbers in pick_devices(self.fleet, ready, seats, self.shape):
            free[numbers] = False
        room = self.hosts_now()
        if hosts is not None:  # what the gang will use is counted once all have left
            hosts.take(self.rights.claim.request, seats.nodes)
            room = room.least(hosts)
        return find_homes(self.fleet, free, room, movers, self.against)

    def _trimmed(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The choice without anybody who is not needed, the dearest left out first."""
        kept, made = list(numbers), self._made_by(self.menu.all(numbers))
        for number in sorted(numbers, key=lambda n: (-self.menu[n].cost, self.menu.name(n))):
            if not made.fits_without(self.menu[number]):
                continue
            rest = [other for other in kept if other != number]
            if self._holds(self.menu.all(rest)):
                kept = rest
                made.leave_out(self.menu[number])
        return tuple(sorted(kept, key=self.menu.name))
