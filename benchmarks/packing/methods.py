"""The methods that are compared. Each is asked for a node (and a card to share) and told what was placed.

`Random`, `BestFit` and `Gradient` follow the paper and its simulator, scores cut to whole numbers as there. Nodes are
rows in the order of the seed (`Cluster.in_order_of`), and the first of equals is taken: the published tie-break. It
matters: with another choice among equals for each pod FGD falls below BestFit. `Ours` is the scheduler's own:
`scheduling.fragmentation`, which plan() asks as well.
"""

import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from benchmarks.packing.pods import Cluster
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.fragmentation import Headroom
from dsec_workers.scheduling.scoreboard import Scoreboard
from dsec_workers.scheduling.shapes import WHOLE, MemberShape, Workload, whole_nodes

Place = tuple[int, int]
"""Row of the node, and the card to share (−1: whole cards or none)."""


class Method(Protocol):
    """A way to choose a node."""

    def choose(self, pod: MemberShape) -> Place | None:
        """Where the pod goes; None if it fits nowhere."""

    def placed(self, pod: MemberShape, place: Place) -> None:
        """The room has been taken."""


def able(cluster: Cluster, pod: MemberShape) -> Bools:
    """The classes of card that the pod accepts."""
    return np.array([pod.accepts(kind) for kind in cluster.classes], bool)


def feasible(room: Headroom, pod: MemberShape, classes: Bools) -> Bools:
    """The nodes that can hold the pod."""
    fits = (room.cpu_milli >= pod.cpu_milli) & (room.memory_mib >= pod.memory_mib)
    if pod.devices:
        fits &= ((room.cards >= pod.share).sum(axis=1) >= pod.devices) & classes[room.kind]
    return fits


class Random:
    """Any node that fits, any card that fits."""

    def __init__(self, cluster: Cluster, room: Headroom, seed: int) -> None:
        self.cluster, self.room, self.dice = cluster, room, random.Random(seed)

    def choose(self, pod: MemberShape) -> Place | None:
        """One at random."""
        rows = np.flatnonzero(feasible(self.room, pod, able(self.cluster, pod)))
        if not len(rows):
            return None
        row = int(rows[self.dice.randrange(len(rows))])
        if pod.whole or not pod.devices:
            return row, -1
        return row, self.dice.choice(np.flatnonzero(self.room.cards[row] >= pod.share).tolist())

    def placed(self, pod: MemberShape, place: Place) -> None:
        """Nothing is remembered."""


class BestFit:
    """The node with the least processors and cards left, each in units of the largest node; the fullest card."""

    def __init__(self, cluster: Cluster, room: Headroom) -> None:
        self.cluster, self.room = cluster, room

    def choose(self, pod: MemberShape) -> Place | None:
        """The one with the highest score of whole points."""
        room = self.room
        rows = np.flatnonzero(feasible(room, pod, able(self.cluster, pod)))
        if not len(rows):
            return None
        cpu = (room.cpu_milli[rows] - pod.cpu_milli) / 128_000
        cards = (room.cards[rows].sum(axis=1) - pod.thousandths) / 8_000
        row = int(rows[np.argmax((100 * (1 - 0.5 * cpu - 0.5 * cards)).astype(np.int64))])
        if pod.whole or not pod.devices:
            return row, -1
        left = np.where(room.cards[row] >= pod.share, room.cards[row], 2 * WHOLE)
        return row, int(np.argmin(left))

    def placed(self, pod: MemberShape, place: Place) -> None:
        """Nothing is remembered."""


class Gradient:
    """FGD: the node and card that add least to the expected fragmentation, over the typical pods of the whole list."""

    def __init__(self, cluster: Cluster, room: Headroom, typical: Sequence[tuple[MemberShape, float]]) -> None:
        self.cluster, self.room, self.measure = cluster, room, Fragmentation(cluster, typical)
        self.version = np.zeros(len(room.cards), np.int64)
        self.now = self.measure.of(room)
        self.known: dict[MemberShape, tuple[Ints, Ints, Ints]] = {}
        self.able: dict[MemberShape, Bools] = {}

    def choose(self, pod: MemberShape) -> Place | None:
        """The one with the highest score of whole points; only nodes that have changed are scored again."""
        if pod not in self.known:
            size = len(self.room.cards)
            self.known[pod] = (np.full(size, -1), np.full(size, -1), np.full(size, -1))
            self.able[pod] = able(self.cluster, pod)
        seen, scores, cards = self.known[pod]
        rows = np.flatnonzero(seen != self.version)
        if len(rows):
            seen[rows] = self.version[rows]
            scores[rows], cards[rows] = self._scores(pod, rows)
        best = int(np.argmax(scores))
        return None if scores[best] < 0 else (best, int(cards[best]))

    def _scores(self, pod: MemberShape, rows: Ints) -> tuple[Ints, Ints]:
        room = self.room.rows(rows)
        best, card = np.full(len(rows), -1), np.full(len(rows), -1)
        fits = feasible(room, pod, self.able[pod])
        room.cpu_milli[:] -= pod.cpu_milli
        if not pod.whole and pod.devices:
            for number in range(room.cards.shape[1]):
                usable = np.flatnonzero(fits & (room.cards[:, number] >= pod.share))
                if len(usable):
                    tried = room.rows(usable)
                    tried.cards[:, number] -= pod.share
                    score = self._score(rows[usable], tried)
                    better = score > best[usable]
                    best[usable[better]], card[usable[better]] = score[better], number
            return best, card
        usable = np.flatnonzero(fits)
        tried = room.rows(usable)
        full = tried.cards == WHOLE
        tried.cards[full & (np.cumsum(full, axis=1) <= pod.devices)] = 0
        best[usable] = self._score(rows[usable], tried)
        return best, card

    def _score(self, rows: Ints, tried: Headroom) -> Ints:
        gain = (self.now[rows] - self.measure.of(tried)) / WHOLE
        return np.asarray(100 / (1 + np.exp(-gain)), np.int64)

    def placed(self, pod: MemberShape, place: Place) -> None:
        """That node has changed."""
        row = np.array(place[:1])
        self.version[row] += 1
        self.now[row] = self.measure.of(self.room.rows(row))


class Fragmentation:
    """The paper's measure: the free thousandths of a node that a typical pod, drawn at random, could not use."""

    def __init__(self, cluster: Cluster, typical: Sequence[tuple[MemberShape, float]]) -> None:
        asking = [(shape, part) for shape, part in typical if shape.devices]
        self.without_cards = sum(part for shape, part in typical if not shape.devices)
        self.part = np.array([part for _, part in asking])
        self.devices = np.array([shape.devices for shape, _ in asking])
        self.cpu_milli = np.array([shape.cpu_milli for shape, _ in asking])
        self.able = np.array([able(cluster, shape) for shape, _ in asking]).T
        shares = sorted({shape.share for shape, _ in asking})
        self.which = np.searchsorted(shares, [shape.share for shape, _ in asking])
        free = np.arange(WHOLE + 1)[:, None]
        self.enough = (free >= np.array(shares)).astype(np.int64)
        self.short = np.where(free < np.array(shares), free, 0)

    def of(self, room: Headroom) -> Floats:
        """Of each node, in thousandths of a card."""
        free = room.cards.sum(axis=1)[:, None]
        fits = self.enough[room.cards].sum(axis=1)[:, self.which] >= self.devices
        fits &= (room.cpu_milli[:, None] >= self.cpu_milli) & self.able[room.kind]
        lost = np.where(fits, self.short[room.cards].sum(axis=1)[:, self.which], free)
        return np.asarray(lost @ self.part + free[:, 0] * self.without_cards, float)


class Ours:
    """The scheduler's score, over the shapes it has seen so far, and what would take a node whole."""

    def __init__(self, cluster: Cluster, room: Headroom) -> None:
        cards = (room.cards > 0).sum(axis=1)
        self.workload = Workload(whole_nodes(cards.tolist(), room.cpu_milli.tolist(), room.memory_mib.tolist()))
        self.board = Scoreboard(room, cluster.classes, self.workload)

    def choose(self, pod: MemberShape) -> Place | None:
        """The cheapest, after the arrival has been counted."""
        self.workload.observe(pod)
        return self.board.best(pod)

    def placed(self, pod: MemberShape, place: Place) -> None:
        """That node has changed."""
        self.board.changed(place[0])
