"""What plan() expects to come, and what a member on a node would therefore cost: fragmentation for whole cards.

The score is that of `fragmentation`. Members that take whole cards see only how many are free on a node, so there are
a few cases (class of card × free cards) however many nodes there are: each is worked out once for a cycle, and a
decision looks them up. Where nodes say how many processors they have and somebody asks for them, the nodes differ and
are worked out one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dsec_workers.scheduling.fleet import Fleet, Floats, Ints
from dsec_workers.scheduling.fragmentation import Headroom, Outlook, Weights, change, cost, outlook, prices, rates
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.shapes import (
    WHOLE,
    MemberShape,
    Typical,
    most_demanded,
    typical,
    whole_nodes,
    with_expected,
)
from dsec_workers.scheduling.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Prospects:
    """The typical shapes on one fleet, and what nodes could hold of them."""

    fleet: Fleet
    typical: Typical
    weights: Weights
    cases: Outlook
    """By class and free cards: row class · (width + 1) + free."""
    width: int
    one_by_one: bool
    _effects: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)

    def costs(self, node_free: Ints, devices: int, *, cpu_milli: int, memory_mib: int, hosts: Hosts | None) -> Floats:
        """Per node, what `devices` of its free cards cost; meaningless where they do not fit."""
        if hosts is not None and (self.one_by_one or cpu_milli or memory_mib):
            return self._each(node_free, MemberShape(devices, WHOLE, cpu_milli, memory_mib), hosts)
        case = self.fleet.node_class * (self.width + 1) + np.minimum(node_free, self.width)
        case[self.fleet.node_class < 0] = 0
        rate = self._rate(self.cases.holds.T @ np.bincount(case, minlength=len(self.cases.holds)))
        if devices not in self._effects:
            rows = np.arange(len(self.cases.holds))
            after = np.where(rows % (self.width + 1) >= devices, rows - devices, rows)
            lost = self.cases.holds - self.cases.holds[after]
            stranded = (self.cases.stranded[after] - self.cases.stranded) / WHOLE
            self._effects[devices] = np.concatenate((lost, stranded), axis=1).astype(np.float32)
        return cost(self._effects[devices], rate)[case]

    def _each(self, node_free: Ints, shape: MemberShape, hosts: Hosts) -> Floats:
        cards = np.where(np.arange(self.width)[None, :] < node_free[:, None], WHOLE, 0)
        room = Headroom(cards, hosts.cpu_milli, hosts.memory_mib, np.maximum(self.fleet.node_class, 0))
        before = outlook(room, self.typical)
        rate = self._rate(before.holds.sum(axis=0))
        able = np.ones(len(self.fleet.classes), bool)
        return change(room, before, shape, able, self.typical).costs(rate)

    def _rate(self, holds: Floats) -> Floats:
        price = prices(holds, float(self.fleet.size), self.typical, self.weights)
        return rates(price, self.typical, self.weights)


def expecting(snapshot: Snapshot, classes: Sequence[GangClass], policy: Policy) -> Snapshot:
    """The snapshot with what is to be expected: more of what has arrived lately, runs, and waits."""
    demand: dict[MemberShape, float] = dict(snapshot.seen)
    for shape, members in snapshot.demand.items():
        demand[shape] = demand.get(shape, 0.0) + members
    asks = np.array([kind.asks for kind in classes], np.int64)
    asked = np.array([kind.request.nodes * len(kind.gangs) for kind in classes], np.int64)
    _, first, inverse = np.unique(asks, return_index=True, return_inverse=True)
    waiting: dict[MemberShape, int] = {}
    sums = np.bincount(inverse.reshape(-1), asked).astype(np.int64) if len(classes) else asked
    for number, count in zip(first.tolist(), sums.tolist(), strict=True):
        shape = classes[number].member
        waiting[shape] = waiting.get(shape, 0) + count
    for shape, together in waiting.items():
        if shape.devices:
            demand[shape] = demand.get(shape, 0.0) + together
    weights = Weights(stranded=policy.stranded_weight, scarcity=policy.scarcity)
    return replace(snapshot, fleet=replace(snapshot.fleet, prospects=prospects(snapshot.fleet, demand, weights)))


def prospects(fleet: Fleet, demand: Mapping[MemberShape, float], weights: Weights) -> Prospects | None:
    """What to expect after `demand` (shape → how often it is asked for); None when nobody asks for cards."""
    shapes = typical(most_demanded(demand), fleet.classes)
    if not shapes.shapes or not fleet.size:
        return None
    width = int(np.diff(fleet.node_start).max())
    kinds, free = np.divmod(np.arange(len(fleet.classes) * (width + 1)), width + 1)
    plenty = np.full(len(kinds), np.inf)
    cards = np.where(np.arange(width)[None, :] < free[:, None], WHOLE, 0)
    known = bool(np.isfinite(fleet.cpu_milli).any() or np.isfinite(fleet.memory_mib).any())
    if known and shapes.hosts_matter:
        whole = whole_nodes(np.diff(fleet.node_start).tolist(), fleet.cpu_milli.tolist(), fleet.memory_mib.tolist())
        shapes = typical(most_demanded(with_expected(demand, whole)), fleet.classes)
    return Prospects(
        fleet=fleet,
        typical=shapes,
        weights=weights,
        cases=outlook(Headroom(cards, plenty, plenty, kinds), shapes),
        width=width,
        one_by_one=known and shapes.hosts_matter,
    )
