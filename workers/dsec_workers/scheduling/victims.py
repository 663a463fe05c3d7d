"""The cheapest gangs to evict so that one gang fits: exact where that is affordable, and said so where it is not.

A *domain* is a part of the cluster that could hold the gang by itself: one node (or island) for a single member, one
NVLink domain when all must share it, else the whole resource pool. Per domain with few candidates a branch and bound
looks at sets of victims, cheapest per device first, under a lower bound (fractional knapsack over the devices that
are still missing); above, the domain is filled node by node at the least further cost and trimmed backwards.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling.fleet import Bools, Fleet, Ints
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.rights import Rights
from dsec_workers.scheduling.room import View, view_of

Key = tuple[int, int, tuple[float, ...], tuple[str, ...]]


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
    """Slots of the victims, and whether no cheaper set exists."""

    slots: tuple[int, ...]
    optimal: bool


@dataclass(slots=True)
class _Domain:
    """Units (nodes or islands) of one domain that evictions can make big enough for a member."""

    members: int
    """Members that still lack a unit."""
    missing: dict[int, int]
    """Unit → devices missing for a member (≥ 1)."""
    node_of: dict[int, int]
    gains: dict[int, dict[int, int]]
    """Candidate slot → unit → devices it would leave there."""
    relief: frozenset[int]
    """Candidates that could bring the claim's team back under a limit, with or without a gain here."""
    order: list[int] = field(default_factory=list)
    """Candidates, cheapest per useful device first."""
    bound: float = 0.0
    """At least this much must be paid here."""


class Search:
    """One search for one claim.

    `usable` are the devices the gang may take once they are free, `allowed` the slots of `rights.candidates()`.
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
        budget: int,
        exact: int,
    ) -> None:
        self.fleet, self.view, self.shape, self.rights = fleet, view, shape, rights
        self.budget, self.exact = Budget(budget), exact
        self.roster = rights.roster
        holder = self.roster.snapshot.holder
        self.takeable: Bools = usable & ~view.free & (holder >= 0) & (self.roster.snapshot.next_holder < 0)
        if len(allowed):
            self.takeable &= allowed[holder]
        else:
            self.takeable[:] = False
        self.allowed = allowed
        self.relief = self._relief()
        self.by_islands = shape.topology is not Topology.PREFERRED
        self.best: tuple[Key, tuple[int, ...]] | None = None
        self.exhaustive = True

    def run(self) -> Chosen | None:
        """The victims; None when no admissible set makes the gang fit (or none was found within the budget)."""
        if not self.takeable.any() and not self.rights.shortage:
            return None
        if not fits(self.fleet, view_of(self.fleet, self.view.free | self.takeable), self.shape):
            return None
        for domain in self._domains():
            self._solve(domain)
            if self.budget.left < 0:
                break
        if self.best is None:
            return None
        slots = self._trimmed(self.best[1])
        return Chosen(slots, self.exhaustive and self.budget.left >= 0)

    def key(self, slots: Iterable[int]) -> Key:
        """What makes one set of victims better: cost, number, newest, id."""
        chosen = [self.roster.gang(slot) for slot in slots]
        return (
            sum(self.roster.cost(slot) for slot in slots),
            len(chosen),
            tuple(sorted(-gang.started_at for gang in chosen)),
            tuple(sorted(gang.run_id for gang in chosen)),
        )

    def _domains(self) -> Iterator[_Domain]:
        """The domains that could hold the gang, the most promising first."""
        fleet, shape = self.fleet, self.shape
        unit_of = fleet.device_island if self.by_islands else fleet.device_node
        node_of = fleet.island_node if self.by_islands else np.arange(len(fleet.nodes))
        base = self.view.island_free if self.by_islands else self.view.node_free
        devices = np.flatnonzero(self.takeable)
        slots = self.roster.snapshot.holder[devices]
        width = max(1, len(self.roster.team))
        pairs, counts = np.unique(unit_of[devices] * width + slots, return_counts=True)
        units, holders = pairs // width, pairs % width
        reach = base + np.bincount(units, counts, minlength=len(base)).astype(np.int64)
        able = reach >= shape.devices
        if self.by_islands and (shape.devices > 1 or (shape.topology is Topology.DOMAIN and shape.members > 1)):
            able &= fleet.island_domain >= 0
        groups = fleet.island_domain if shape.topology is Topology.DOMAIN else np.zeros(len(base), np.int64)
        held: dict[int, list[tuple[int, int]]] = {}
        for unit, slot, count in zip(units.tolist(), holders.tolist(), counts.tolist(), strict=True):
            held.setdefault(unit, []).append((slot, count))
        if shape.members == 1:
            yield from self._single_units(able, base, units, holders, counts, held, node_of)
            return
        by_group: dict[int, list[int]] = {}
        for unit in np.flatnonzero(able).tolist():
            by_group.setdefault(int(groups[unit]), []).append(unit)
        domains = [self._domain(members, base, held, node_of) for members in by_group.values()]
        yield from sorted((d for d in domains if d is not None), key=lambda d: d.bound)

    def _single_units(
        self,
        able: Bools,
        base: Ints,
        units: Ints,
        holders: Ints,
        counts: Ints,
        held: dict[int, list[tuple[int, int]]],
        node_of: Ints,
    ) -> Iterator[_Domain]:
        """Every unit that could hold the only member, by the least that it could cost, until that is too much.

        The least is the cheapest price per missing device times the devices missing. Units with room enough (their
        gang only lacks quota) are all alike: one is looked at.
        """
        missing = np.maximum(self.shape.devices - base, 0)
        cheapest = np.full(len(base), np.inf)
        distinct, where = np.unique(holders, return_inverse=True)
        costs = np.array([self.roster.cost(slot) for slot in distinct.tolist()], float)[where]
        np.minimum.at(cheapest, units, costs / np.maximum(np.minimum(counts, missing[units]), 1))
        least = np.zeros(len(base))
        np.multiply(cheapest, missing, out=least, where=missing > 0)
        hopeful = np.flatnonzero(able & np.isfinite(least))
        seen_ready = False
        for unit in hopeful[np.lexsort((hopeful, least[hopeful]))].tolist():
            if self.best is not None and least[unit] > self.best[0][0] + 1e-6:
                return
            if missing[unit] == 0:
                if seen_ready:
                    continue
                seen_ready = True
            domain = self._domain([unit], base, held, node_of)
            if domain is not None:
                yield domain

    def _domain(
        self, units: list[int], base: Ints, held: dict[int, list[tuple[int, int]]], node_of: Ints
    ) -> _Domain | None:
        """The domain of these units; None if evictions in it cannot make the gang fit."""
        shape = self.shape
        if len({int(node_of[unit]) for unit in units}) < shape.members:
            return None
        ready = {int(node_of[unit]) for unit in units if base[unit] >= shape.devices}
        missing = {unit: shape.devices - int(base[unit]) for unit in units if int(node_of[unit]) not in ready}
        gains: dict[int, dict[int, int]] = {}
        for unit in missing:
            for slot, count in held.get(unit, ()):
                gains.setdefault(slot, {})[unit] = count
        domain = _Domain(
            members=max(0, shape.members - len(ready)),
            missing=missing,
            node_of={unit: int(node_of[unit]) for unit in missing},
            gains={**gains, **{slot: {} for slot in self.relief if slot not in gains}},
            relief=self.relief,
        )
        domain.order = self._order(domain)
        bound = self._bound(domain, 0, domain.missing, domain.members)
        if bound is None:
            return None
        domain.bound = bound
        return domain

    def _relief(self) -> frozenset[int]:
        if not self.rights.shortage:
            return frozenset()
        return frozenset(np.flatnonzero(self.rights.relieving(self.allowed)).tolist())

    def _order(self, domain: _Domain) -> list[int]:
        """Candidates, cheapest per useful device first."""

        def ratio(slot: int) -> tuple[float, float, str]:
            useful = sum(min(count, domain.missing[unit]) for unit, count in domain.gains[slot].items())
            if slot in domain.relief:
                useful += int(self.roster.devices[slot])
            gang = self.roster.gang(slot)
            return (self.roster.cost(slot) / max(useful, 0.5), -gang.started_at, gang.run_id)

        return sorted(domain.gains, key=ratio)

    def _bound(self, domain: _Domain, start: int, missing: dict[int, int], members: int) -> float | None:
        """At least this much more must be paid with candidates from `start` on; None: they cannot do it at all."""
        order = domain.order
        if members <= 0:
            return 0.0
        reachable = dict.fromkeys(missing, 0)
        for slot in order[start:]:
            for unit, count in domain.gains[slot].items():
                if unit in reachable:
                    reachable[unit] += count
        least: dict[int, int] = {}
        for unit, lacking in missing.items():
            node = domain.node_of[unit]
            if reachable[unit] >= lacking and lacking < least.get(node, lacking + 1):
                least[node] = lacking
        if len(least) < members:
            return None
        need = sum(sorted(least.values())[:members])
        rated = []
        for slot in order[start:]:
            useful = sum(
                min(count, missing[unit]) for unit, count in domain.gains[slot].items() if missing.get(unit, 0) > 0
            )
            if useful:
                rated.append((self.roster.cost(slot) / useful, useful))
        rated.sort()
        paid = 0.0
        for price, useful in rated:
            take = min(useful, need)
            paid += price * take
            need -= take
            if not need:
                break
        return paid

    def _solve(self, domain: _Domain) -> None:
        if self._hopeless(domain.bound, 1):
            return
        if len(domain.order) > self.exact:
            self.exhaustive = False
            self._greedy(domain)
        else:
            self._branch(domain, 0, (), 0, domain.missing, domain.members)

    def _offer(self, slots: tuple[int, ...]) -> None:
        key = self.key(slots)
        if self.best is None or key < self.best[0]:
            self.best = (key, slots)

    def _branch(
        self, domain: _Domain, index: int, chosen: tuple[int, ...], cost: int, missing: dict[int, int], members: int
    ) -> None:
        if not self.budget.spend():
            return
        if members <= 0 and self.rights.admissible(chosen):
            self._offer(chosen)
            return
        if index == len(domain.order) or not self._relievable(domain, index, chosen):
            return
        bound = self._bound(domain, index, missing, members)
        if bound is None or self._hopeless(cost + bound, len(chosen) + 1):
            return
        slot = domain.order[index]
        if self.rights.tolerable((*chosen, slot)):
            after, left = _without(domain, missing, members, slot)
            self._branch(domain, index + 1, (*chosen, slot), cost + self.roster.cost(slot), after, left)
        self._branch(domain, index + 1, chosen, cost, missing, members)

    def _relievable(self, domain: _Domain, index: int, chosen: tuple[int, ...]) -> bool:
        """Whether the candidates that are left could still bring the team under its limit."""
        if not self.rights.shortage:
            return True
        own = [slot for slot in (*chosen, *domain.order[index:]) if slot in domain.relief]
        return int(self.roster.devices[own].sum()) >= self.rights.shortage

    def _hopeless(self, cost: float, count: int) -> bool:
        if self.best is None:
            return False
        best = self.best[0]
        return cost > best[0] + 1e-6 or (cost > best[0] - 1e-6 and count > best[1])

    def _greedy(self, domain: _Domain) -> None:
        """Fill one unit after the other, always the one that costs least beyond what is already paid."""
        chosen: tuple[int, ...] = ()
        missing, members = dict(domain.missing), domain.members
        at_unit: dict[int, list[int]] = {}
        for slot, gains in domain.gains.items():
            for unit in gains:
                at_unit.setdefault(unit, []).append(slot)
        fills = {unit: self._fill(domain, unit, at_unit.get(unit, []), chosen, missing) for unit in missing}
        while members > 0:
            best = min(((fill[0], unit) for unit, fill in fills.items() if fill is not None), default=None)
            if best is None or not self.budget.spend():
                return
            unit, fill = best[1], fills[best[1]]
            assert fill is not None
            if not self.rights.tolerable((*chosen, *fill[1])):
                # Dearer since others were chosen, or no longer allowed: never cheaper, so this ends.
                fills[unit] = self._fill(domain, unit, at_unit[unit], chosen, missing)
                continue
            stale: set[int] = set()
            for slot in fill[1]:
                missing, members = _without(domain, missing, members, slot)
                stale.update(domain.gains[slot])
            chosen = (*chosen, *fill[1])
            fills = {unit: fill for unit, fill in fills.items() if unit in missing}
            for unit in stale & fills.keys():
                fills[unit] = self._fill(domain, unit, at_unit[unit], chosen, missing)
        for slot in domain.order:
            if self.rights.admissible(chosen):
                break
            if slot in domain.relief and slot not in chosen:
                chosen = (*chosen, slot)
        if self.rights.admissible(chosen):
            self._offer(self._trimmed(chosen))

    def _fill(
        self, domain: _Domain, unit: int, slots: list[int], chosen: tuple[int, ...], missing: dict[int, int]
    ) -> tuple[int, tuple[int, ...]] | None:
        """Cost and victims that give `unit` what a member misses there, cheapest per device first; None: it cannot."""
        lacking, cost = missing[unit], 0
        fill: list[int] = []
        gone = set(chosen)

        def price(slot: int) -> tuple[float, str]:
            useful = min(domain.gains[slot][unit], missing[unit])
            return self.roster.cost(slot) / useful, self.roster.gang(slot).run_id

        for slot in sorted((s for s in slots if s not in gone), key=price):
            if lacking <= 0:
                break
            if self.rights.tolerable((*chosen, *fill, slot)):
                fill.append(slot)
                cost += self.roster.cost(slot)
                lacking -= domain.gains[slot][unit]
        return (cost, tuple(fill)) if lacking <= 0 else None

    def _holds(self, slots: Iterable[int]) -> bool:
        """Whether the gang fits once these victims are gone, and they may be evicted together."""
        gone = list(slots)
        if not self.rights.admissible(gone):
            return False
        return fits(self.fleet, view_of(self.fleet, self.view.free | self.freed(gone)), self.shape)

    def freed(self, slots: Iterable[int]) -> Bools:
        """The devices that these victims leave to the gang, over all devices."""
        found: Bools = self.takeable & np.isin(self.roster.snapshot.holder, np.array(list(slots), np.int64))
        return found

    def minimal(self, slots: tuple[int, ...]) -> bool:
        """The last check before anybody is evicted: the gang fits, by right, and no victim can be left out."""
        return self._holds(slots) and not any(self._holds([s for s in slots if s != out]) for out in slots)

    def _trimmed(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The set without any victim that is not needed, the dearest left out first."""
        kept = list(slots)
        for slot in sorted(slots, key=lambda s: (-self.roster.cost(s), self.roster.gang(s).run_id)):
            rest = [other for other in kept if other != slot]
            if self._holds(rest):
                kept = rest
        return tuple(sorted(kept, key=lambda s: self.roster.gang(s).run_id))


def _without(domain: _Domain, missing: dict[int, int], members: int, slot: int) -> tuple[dict[int, int], int]:
    """What is missing once `slot` has left; a node that is big enough takes one member and is done."""
    gains = domain.gains[slot]
    if not gains:
        return missing, members
    after, done = dict(missing), set()
    for unit, count in gains.items():
        if unit in after:
            after[unit] -= count
            if after[unit] <= 0:
                done.add(domain.node_of[unit])
    if done:
        after = {unit: lacking for unit, lacking in after.items() if domain.node_of[unit] not in done}
    return after, members - len(done)
