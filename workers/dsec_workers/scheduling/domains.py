"""The parts of a cluster that could hold a gang by themselves, and what each running gang would leave there.

A *domain* is one node (or NVLink island) for a single member, one NVLink domain when all members must share it, else
the whole resource pool. Its *units* are the nodes or islands that evictions can make big enough for a member. No two
members share a *seat*: a node, or a whole rack when they must not fail together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling.fleet import Bools, Fleet, Ints
from dsec_workers.scheduling.placement import BY_ISLAND, LEVELS, Shape
from dsec_workers.scheduling.room import View


@dataclass(slots=True)
class Domain:
    """Units of one domain, by number, and how far each is from holding a member."""

    members: int
    """Members that still lack a unit."""
    missing: dict[int, int]
    """Unit → devices missing for a member (≥ 1)."""
    seat_of: dict[int, int]
    """Unit → node, or rack, that takes one member at most."""
    held: dict[int, dict[int, int]]
    """Slot → unit → devices that it holds there."""
    gains: dict[int, dict[int, int]] = field(default_factory=dict)
    """Option → unit → devices it would leave there."""
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
        for unit, count in gains.items():
            if unit in after:
                after[unit] -= count
                if after[unit] <= 0:
                    done.add(self.seat_of[unit])
        if done:
            after = {unit: lacking for unit, lacking in after.items() if self.seat_of[unit] not in done}
        return after, members - len(done)


class Domains:
    """The domains of one cluster for one shape, given who holds what of the devices that can be had."""

    def __init__(self, fleet: Fleet, view: View, shape: Shape, takeable: Bools, holder: Ints, slots: int) -> None:
        self.fleet, self.view, self.shape = fleet, view, shape
        by_islands = shape.topology in BY_ISLAND
        self.unit_of: Ints = fleet.device_island if by_islands else fleet.device_node
        self.spread = shape.topology is Topology.SPREAD and shape.members > 1
        node_of: Ints = fleet.island_node if by_islands else np.arange(len(fleet.nodes))
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
        hopeful = np.flatnonzero(self.able & np.isfinite(least))
        seen_ready = False
        for unit in hopeful[np.lexsort((hopeful, least[hopeful]))].tolist():
            if missing[unit] == 0:
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
