"""The parts of a cluster that could hold a gang by themselves, and what each running gang would leave there.

A *domain* is one node (or NVLink island) for a single member, one NVLink domain when all members must share it, else
the whole resource pool. Its *units* are the nodes or islands that evictions can make big enough for a member. No two
members share a *seat*: a node, or a whole rack when they must not fail together.

What a unit lacks is counted by *key*: the unit's number where only devices count; where processors and memory do, three
for each unit (devices, thousandths of a processor, MiB).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.placement import BY_ISLAND, LEVELS, Shape
from dsec_workers.scheduling.room import View
from dsec_workers.scheduling.tenants import Tenants


@dataclass(slots=True)
class Domain:
    """Units of one domain, by number, and how far each is from holding a member."""

    members: int
    """Members that still lack a unit."""
    missing: dict[int, int]
    """Key → what is missing of it for a member (≥ 1)."""
    seat_of: dict[int, int]
    """Key → node, or rack, that takes one member at most."""
    held: dict[int, dict[int, int]]
    """Slot → key → what it holds of it."""
    kinds: int = 1
    """Keys of each unit."""
    worth: tuple[float, ...] = (1.0,)
    """By kind of key, what one of it is worth in devices, for a member that needs some of each."""
    at_node: dict[int, list[int]] = field(default_factory=dict)
    """Node → its keys that are not of devices."""
    gains: dict[int, dict[int, int]] = field(default_factory=dict)
    """Option → key → what it would leave of it."""
    relief: frozenset[int] = frozenset()
    """Options that could bring the claim's team back under a limit, with or without a gain here."""
    order: list[int] = field(default_factory=list)
    """Options, cheapest per useful device first."""
    bound: float = 0.0
    """At least this much must be paid here."""

    def without(self, missing: dict[int, int], members: int, option: int) -> tuple[dict[int, int], int]:
        """What is missing once `option` is taken; a seat that is big enough takes one member and is done."""
        gains = self.gains[option]
        if not gains:
            return missing, members
        after, done = dict(missing), set()
        for key, count in gains.items():
            if key in after:
                after[key] -= count
                if after[key] <= 0:
                    if self.kinds > 1:
                        del after[key]
                        if not after.keys().isdisjoint(self.keys_beside(key)):
                            continue
                    done.add(self.seat_of[key])
        if done:
            after = {key: lacking for key, lacking in after.items() if self.seat_of[key] not in done}
        return after, members - len(done)

    def keys_beside(self, key: int) -> range:
        """The keys of the same unit."""
        first = key - key % self.kinds
        return range(first, first + self.kinds)

    def useful(self, gains: Mapping[int, int], missing: Mapping[int, int]) -> float:
        """How much of what is missing these give, in devices."""
        if self.kinds == 1:
            return sum(min(count, missing[key]) for key, count in gains.items() if key in missing)
        worth, kinds = self.worth, self.kinds
        return sum(min(count, missing[key]) * worth[key % kinds] for key, count in gains.items() if key in missing)


class Domains:
    """The domains of one cluster for one shape, given who holds what of the devices that can be had."""

    def __init__(
        self,
        fleet: Fleet,
        view: View,
        shape: Shape,
        takeable: Bools,
        holder: Ints,
        slots: int,
        tenants: Tenants | None = None,
    ) -> None:
        self.fleet, self.view, self.shape = fleet, view, shape
        self.beside = None if tenants is None or view.hosts is None else _Beside(view.hosts, shape, tenants)
        by_islands = shape.topology in BY_ISLAND
        self.unit_of: Ints = fleet.device_island if by_islands else fleet.device_node
        self.spread = shape.topology is Topology.SPREAD and shape.members > 1
        node_of: Ints = fleet.island_node if by_islands else np.arange(len(fleet.nodes))
        self.node_of = node_of
        self.seat_of: Ints = fleet.named_levels["rack"] if self.spread else node_of
        self.base: Ints = view.island_free if by_islands else view.node_free
        devices = np.flatnonzero(takeable)
        width = max(1, slots)
        pairs, counts = np.unique(self.unit_of[devices] * width + holder[devices], return_counts=True)
        self.units: Ints = pairs // width
        self.holders: Ints = pairs % width
        self.counts: Ints = counts.astype(np.int64)
        reach = self.base + np.bincount(self.units, counts, minlength=len(self.base)).astype(np.int64)
        self.able: Bools = reach >= shape.devices
        if by_islands and (shape.devices > 1 or (shape.topology is Topology.DOMAIN and shape.members > 1)):
            self.able &= fleet.island_domain >= 0
        if self.beside is not None:
            self.able &= self.beside.able[node_of]
        self.held: dict[int, list[tuple[int, int]]] = {}
        for unit, slot, count in zip(self.units.tolist(), self.holders.tolist(), counts.tolist(), strict=True):
            self.held.setdefault(unit, []).append((slot, count))

    def groups(self) -> list[Domain]:
        """The domains for a gang of several members."""
        if self.shape.topology in LEVELS:
            groups = self.fleet.named_levels[LEVELS[self.shape.topology]]
        else:
            groups = (
                self.fleet.island_domain if self.shape.topology is Topology.DOMAIN else np.zeros(len(self.base), int)
            )
        if self.spread:
            groups = np.where(self.seat_of >= 0, groups, -1)  # a node of no known rack is apart from nobody
        by_group: dict[int, list[int]] = {}
        for unit in np.flatnonzero(self.able & (groups >= 0)).tolist():
            by_group.setdefault(int(groups[unit]), []).append(unit)
        return [domain for units in by_group.values() if (domain := self.domain(units)) is not None]

    def singles(self, cheapest: Mapping[int, int]) -> Iterator[tuple[float, Domain]]:
        """Every unit that could hold the only member, by the least that it could cost; `cheapest` is by slot.

        The least is the cheapest price per missing device times the devices missing. Units with room enough (their
        gang only lacks quota) are all alike: one is looked at.
        """
        missing = np.maximum(self.shape.devices - self.base, 0)
        price = np.full(len(self.base), np.inf)
        distinct, where = np.unique(self.holders, return_inverse=True)
        costs = np.array([cheapest[slot] for slot in distinct.tolist()], float)[where]
        np.minimum.at(price, self.units, costs / np.maximum(np.minimum(self.counts, missing[self.units]), 1))
        least = np.zeros(len(self.base))
        np.multiply(price, missing, out=least, where=missing > 0)
        ready = missing == 0
        if self.beside is not None:
            least = np.maximum(least, self.beside.least(cheapest)[self.node_of])
            ready &= self.beside.ready[self.node_of]
        hopeful = np.flatnonzero(self.able & np.isfinite(least))
        seen_ready = False
        for unit in hopeful[np.lexsort((hopeful, least[hopeful]))].tolist():
            if ready[unit]:
                if seen_ready:
                    continue
                seen_ready = True
            domain = self.domain([unit])
            if domain is not None:
                yield float(least[unit]), domain

    def domain(self, units: list[int]) -> Domain | None:
        """The domain of these units; None if they offer too few seats."""
        shape = self.shape
        seat_of = {unit: int(self.seat_of[unit]) for unit in units}
        if len(set(seat_of.values())) < shape.members:
            return None
        if self.beside is not None:
            return self._domain_beside(self.beside, units, seat_of)
        ready = {seat_of[unit] for unit in units if self.base[unit] >= shape.devices}
        missing = {unit: shape.devices - int(self.base[unit]) for unit in units if seat_of[unit] not in ready}
        held: dict[int, dict[int, int]] = {}
        for unit in missing:
            for slot, count in self.held.get(unit, ()):
                held.setdefault(slot, {})[unit] = count
        return Domain(
            members=max(0, shape.members - len(ready)),
            missing=missing,
            seat_of={unit: seat_of[unit] for unit in missing},
            held=held,
        )

    def _domain_beside(self, beside: "_Beside", units: list[int], seat_of: Mapping[int, int]) -> Domain:
        """The same where processors and memory count."""
        shape, kinds = self.shape, 1 + len(beside.lacking)
        lacks = {
            unit: [max(0, shape.devices - int(self.base[unit])), *beside.lacking[:, self.node_of[unit]].tolist()]
            for unit in units
        }
        ready = {seat_of[unit] for unit, lacking in lacks.items() if not any(lacking)}
        missing: dict[int, int] = {}
        held: dict[int, dict[int, int]] = {}
        at_node: dict[int, list[int]] = {}
        for unit, lacking in lacks.items():
            if seat_of[unit] in ready:
                continue
            node, first = int(self.node_of[unit]), unit * kinds
            missing |= {first + kind: amount for kind, amount in enumerate(lacking) if amount}
            if lacking[0]:
                for slot, count in self.held.get(unit, ()):
                    held.setdefault(slot, {})[first] = count
            at_node.setdefault(node, []).extend(first + kind for kind in range(1, kinds) if lacking[kind])
            for slot, amounts in beside.on.get(node, ()):
                for kind, amount in enumerate(amounts, 1):
                    if lacking[kind] and amount:
                        held.setdefault(slot, {})[first + kind] = amount
        return Domain(
            members=max(0, shape.members - len(ready)),
            missing=missing,
            seat_of={key: seat_of[key // kinds] for key in missing},
            held=held,
            kinds=kinds,
            worth=(1.0, *(shape.devices / need if need else 0.0 for need in (shape.cpu_milli, shape.memory_mib))),
            at_node=at_node,
        )


class _Beside:
    """By node, what a member of the shape lacks of processors and memory, and who could leave some."""

    def __init__(self, hosts: Hosts, shape: Shape, tenants: Tenants) -> None:
        free = np.array([hosts.cpu_milli, hosts.memory_mib])
        needs = np.array([[shape.cpu_milli], [shape.memory_mib]], float)
        lacking = np.where(needs > 0, np.maximum(0.0, needs - free), 0.0)
        self.lacking: Ints = np.ceil(lacking).astype(np.int64)
        """Kind × node."""
        self.tenants = tenants
        self.amounts = np.array([tenants.cpu_milli, tenants.memory_mib])
        after = np.array([np.bincount(tenants.node, amount, minlength=len(free[0])) for amount in self.amounts])
        self.able: Bools = np.asarray((after >= lacking).all(axis=0), bool)
        self.ready: Bools = np.asarray(~self.lacking.any(axis=0), bool)
        self.on: dict[int, list[tuple[int, list[int]]]] = {}
        amounts = self.amounts.T.astype(np.int64).tolist()
        for slot, node, amount in zip(tenants.slot.tolist(), tenants.node.tolist(), amounts, strict=True):
            self.on.setdefault(node, []).append((slot, amount))

    def least(self, cheapest: Mapping[int, int]) -> Floats:
        """Per node, the least that what is lacking there could cost; `cheapest` is by slot."""
        tenants, found = self.tenants, np.zeros(self.lacking.shape[1])
        costs = np.array([cheapest[slot] for slot in tenants.slot.tolist()], float)
        for lacking, amounts in zip(self.lacking, self.amounts, strict=True):
            price = np.full(len(found), np.inf)
            gives = np.minimum(amounts, lacking[tenants.node])
            some = gives > 0
            np.minimum.at(price, tenants.node[some], costs[some] / gives[some])
            np.maximum(found, np.multiply(price, lacking, out=np.zeros(len(found)), where=lacking > 0), out=found)
        return found
