"""The placement score of many members one after another: only what has changed since is worked out again.

After a placement one node is different. A kind of member that comes again has its change on every other node still on
the board; what the changes cost depends on prices, which move with every arrival, so costs are made anew each time (one
product of a matrix and a vector).
"""

import numpy as np

from dsec_workers.scheduling.fleet import Bools, DeviceClass, Floats, Ints
from dsec_workers.scheduling.fragmentation import Change, Headroom, Outlook, Weights, change, outlook, prices, rates
from dsec_workers.scheduling.shapes import WHOLE, MemberShape, Typical, Workload, typical

_STALE = 0.1
"""The shapes on the board are chosen anew when they make up so much less of the demand than when they were chosen."""

_PATIENCE = 64
"""Arrivals after which the demand for them is counted again at the latest."""


class Scoreboard:
    """Scores on `room`, whose arrays the owner changes; `changed` must be told which node."""

    def __init__(
        self, room: Headroom, classes: tuple[DeviceClass, ...], workload: Workload, weights: Weights | None = None
    ) -> None:
        self.room, self.classes, self.workload = room, classes, workload
        self.weights = weights or Weights()
        self.capacity = float(room.cards.sum()) / WHOLE
        self.version = np.zeros(len(room.cards), np.int64)
        self.learned_at = 0
        self._choose_shapes()

    def best(self, shape: MemberShape) -> tuple[int, int] | None:
        """Row of the cheapest node and the card to share there (−1: whole cards or none); None if it fits nowhere.

        Of equals the first row.
        """
        self._refresh_demand()
        seen, held, able = self._row_of(shape)
        stale = np.flatnonzero(seen != self.version)
        if len(stale):
            self._work_out(stale, held, shape, able)
            seen[stale] = self.version[stale]
        price = prices(self.totals, self.capacity, self.typical, self.weights)
        row = int(np.argmin(held.costs(rates(price, self.typical, self.weights))))
        return None if held.card[row] == -2 else (row, int(held.card[row]))

    def changed(self, row: int) -> None:
        """The room of that node is different."""
        self.version[row] += 1
        rows = np.array([row])
        now = outlook(self.room.rows(rows), self.typical)
        self.before.holds[row], self.before.stranded[row] = now.holds[0], now.stranded[0]

    @property
    def totals(self) -> Floats:
        """What all nodes together could hold of each shape: added up anew, so that nothing drifts."""
        return np.asarray(self.before.holds.sum(axis=0), float)

    def _row_of(self, shape: MemberShape) -> tuple[Ints, Change, Bools]:
        if shape not in self.known:
            size = len(self.room.cards)
            able = np.array([shape.accepts(kind) for kind in self.classes], bool)
            self.known[shape] = (np.full(size, -1), Change.nothing(size, self.typical), able)
        return self.known[shape]

    def _work_out(self, stale: Ints, held: Change, shape: MemberShape, able: Bools) -> None:
        chosen, back = stale, np.arange(len(stale))
        if len(stale) > 64:  # many nodes are alike while the cluster is empty
            keys = np.column_stack(
                (self.room.kind, self.room.cpu_milli, self.room.memory_mib, np.sort(self.room.cards, axis=1))
            )[stale]
            _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            chosen = stale[first]
        new = change(
            self.room.rows(chosen),
            Outlook(self.before.holds[chosen], self.before.stranded[chosen]),
            shape, able, self.typical,
        )  # fmt: skip
        held.effects[stale], held.card[stale] = new.effects[back], new.card[back]
        if len(stale) > 64:
            self._same_card(stale, chosen[back], held, shape)

    def _same_card(self, rows: Ints, like: Ints, held: Change, shape: MemberShape) -> None:
        """A card with as much room as the one that was chosen on the node that `rows` are like."""
        if shape.whole or not shape.devices:
            return
        fitting = held.card[rows] >= 0
        rows, like = rows[fitting], like[fitting]
        wanted = self.room.cards[like, held.card[rows]]
        held.card[rows] = np.argmax(self.room.cards[rows] == wanted[:, None], axis=1)

    def _choose_shapes(self) -> None:
        self.typical: Typical = typical(self.workload.typical(), self.classes)
        weights = self.workload.demand()
        total = sum(weight * shape.devices for shape, weight in weights.items())
        covered = sum(weights[shape] * shape.devices for shape in self.typical.shapes)
        self.covered = covered / total if total else 1.0
        self.before = outlook(self.room, self.typical)
        self.known: dict[MemberShape, tuple[Ints, Change, Bools]] = {}

    def _refresh_demand(self) -> None:
        arrivals = self.workload.arrivals
        if arrivals - self.learned_at < min(_PATIENCE, arrivals / 50):
            return
        self.learned_at = arrivals
        weights = self.workload.demand()
        total = sum(weight * shape.devices for shape, weight in weights.items())
        mine = np.array([weights.get(shape, 0.0) for shape in self.typical.shapes])
        if float(mine @ self.typical.devices) < (self.covered - _STALE) * total:
            self._choose_shapes()
            mine = np.array([weights.get(shape, 0.0) for shape in self.typical.shapes])
        if len(mine):
            self.typical.demand[:] = mine / mine.sum()
