"""What one member asks of a node, and which of these shapes the pool usually sees.

Placement keeps room for what is likely to come. What is likely is not a constant: it is a histogram of the shapes
that have arrived, in which every arrival makes the earlier ones count a little less. It belongs to no trace and to no
cluster, so that a pool which changes its work changes its mind within a few thousand arrivals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, DeviceClass, Floats, Ints
from dsec_workers.scheduling.hosts import host_needs

WHOLE = 1000
"""Thousandths of a card: what a whole one has."""
HALF_LIFE_ARRIVALS = 2000
COVER = 0.99
"""The typical shapes are the most demanded ones that make up this part of all demand for cards."""
MOST = 96
WHOLE_NODE_PART = 0.9
"""Of its processors and memory, what a member asks for that takes a node whole: what runs on every node has some."""
UNSEEN_PART = 0.01
"""Of all who came, what counts as a shape that never did, up to one arrival: a few who wait now weigh more than it."""


@dataclass(frozen=True, slots=True, order=True)
class MemberShape:
    """One member's needs: `devices` cards whole, or `share` thousandths of one; 0 of anything means none or unknown.

    `models` empty accepts every model, else any of those named; `card_bytes` is the least memory of a card.
    """

    devices: int
    share: int = WHOLE
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    card_bytes: int = 0

    @property
    def thousandths(self) -> int:
        """Thousandths of cards in all."""
        return self.devices * self.share

    @property
    def whole(self) -> bool:
        """Whether it asks for whole cards only."""
        return self.share == WHOLE

    def accepts(self, kind: DeviceClass) -> bool:
        """Whether cards of that class will do."""
        known = {model.casefold() for model in self.models}
        return (not known or kind.model.casefold() in known) and kind.memory_bytes >= self.card_bytes


def member_shape(request: GangRequest) -> MemberShape:
    """What each member of the gang asks of its node."""
    cpu_milli, memory_mib = host_needs(request)
    return MemberShape(
        devices=request.devices_per_node,
        share=request.share_milli,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        models=tuple(sorted(request.gpu_models)),
        card_bytes=request.gpu_memory_bytes or 0,
    )


@dataclass(frozen=True, eq=False)
class Typical:
    """The typical shapes as arrays over shapes; `demand` sums to one over arrivals that ask for cards."""

    shapes: tuple[MemberShape, ...]
    devices: Ints
    share: Ints
    cpu_milli: Floats
    memory_mib: Floats
    accepts: Bools
    """Shape × class of device."""
    demand: Floats
    """How often an arrival has the shape."""
    by_card: Floats
    """Free thousandths of a card → members of each shape's share that it holds, then thousandths too few for one."""

    @property
    def several(self) -> bool:
        """Whether any of them asks for more than one card."""
        return bool((self.devices > 1).any())

    @property
    def hosts_matter(self) -> bool:
        """Whether any of them asks for processors or memory of the node."""
        return bool(self.cpu_milli.any() or self.memory_mib.any())


def typical(weights: Iterable[tuple[MemberShape, float]], classes: tuple[DeviceClass, ...]) -> Typical:
    """The arrays of these shapes, each with how often it arrives; shapes without cards are left out."""
    chosen = [(shape, weight) for shape, weight in weights if shape.devices and weight > 0]
    total = sum(weight for _, weight in chosen) or 1.0
    shapes = tuple(shape for shape, _ in chosen)
    share = np.array([shape.share for shape in shapes], np.int64)
    free = np.arange(WHOLE + 1)[:, None]
    return Typical(
        shapes=shapes,
        devices=np.array([shape.devices for shape in shapes], np.int64),
        share=share,
        cpu_milli=np.array([shape.cpu_milli for shape in shapes], float),
        memory_mib=np.array([shape.memory_mib for shape in shapes], float),
        accepts=np.array([[shape.accepts(kind) for kind in classes] for shape in shapes], bool).reshape(
            len(shapes), len(classes)
        ),
        demand=np.array([weight / total for _, weight in chosen], float),
        by_card=np.concatenate((free // share, np.where(free < share, free, 0)), axis=1).astype(np.float32),
    )


@dataclass(eq=False, slots=True)
class Workload:
    """The decayed histogram of arrivals, beside what is `expected` anyway; `half_life` counts arrivals, not seconds."""

    expected: frozenset[MemberShape] = frozenset()
    half_life: float = HALF_LIFE_ARRIVALS
    weights: dict[MemberShape, float] = field(default_factory=dict)
    arrivals: int = 0
    _unit: float = 1.0
    """What an arrival counts now; it grows instead of all others shrinking."""

    def observe(self, shape: MemberShape, times: float = 1.0) -> None:
        """One gang more whose members have this shape (`times` of them)."""
        self.arrivals += 1
        self._unit *= 2.0 ** (1.0 / self.half_life)
        self.weights[shape] = self.weights.get(shape, 0.0) + self._unit * times
        if self._unit > 1e12:
            self.weights = {s: w / self._unit for s, w in self.weights.items() if w / self._unit > 1e-6}
            self._unit = 1.0

    def demand(self) -> dict[MemberShape, float]:
        """The weight of every shape; that of an arrival, now, is one."""
        return with_expected({shape: weight / self._unit for shape, weight in self.weights.items()}, self.expected)

    def typical(self) -> list[tuple[MemberShape, float]]:
        """The shapes that most of the demand for cards is made of, with their weights."""
        return most_demanded(self.demand())


def whole_nodes(
    devices: Iterable[int], cpu_milli: Iterable[float], memory_mib: Iterable[float]
) -> frozenset[MemberShape]:
    """The members that would take a node whole, one for every kind of node.

    Until one came, nothing would keep small members from the processors of all nodes that could hold it. Kinds of one
    card have nothing to keep together, nor those of which neither processors nor memory are known (infinite).
    """
    found: set[MemberShape] = set()
    for count, *host in set(zip(devices, cpu_milli, memory_mib, strict=True)):
        cpu, memory = (int(WHOLE_NODE_PART * amount) if isfinite(amount) else 0 for amount in host)
        if count > 1 and (cpu or memory):
            found.add(MemberShape(devices=count, cpu_milli=cpu, memory_mib=memory))
    return frozenset(found)


def with_expected(demand: Mapping[MemberShape, float], expected: Iterable[MemberShape]) -> dict[MemberShape, float]:
    """`demand` and what is `expected`, which may come though none has (Laplace's rule, bounded by `UNSEEN_PART`)."""
    together = dict(demand)
    once = min(1.0, UNSEEN_PART * sum(demand.values()))
    for shape in expected:
        together[shape] = together.get(shape, 0.0) + once
    return together


def most_demanded(weights: Mapping[MemberShape, float]) -> list[tuple[MemberShape, float]]:
    """The shapes that `COVER` of the demand for cards is made of, most demanded first, at most `MOST`."""
    asking = [(shape, weight) for shape, weight in weights.items() if shape.devices]
    asking.sort(key=lambda pair: (-pair[1] * pair[0].devices, pair[0]))
    left = sum(weight * shape.devices for shape, weight in asking)
    rest = (1 - COVER) * left
    chosen: list[tuple[MemberShape, float]] = []
    for shape, weight in asking:
        if left <= rest or len(chosen) == MOST:
            break
        chosen.append((shape, weight))
        left -= weight * shape.devices
    return chosen
