"""What placing a member on a node would take from the members that are likely to come.

Two things are weighed for every typical shape, before and after: how many members of it the node could still hold (by
cards, processors and memory: a card whose processors are gone holds nobody), and how much free card would be out of
its reach (the measure of fragmentation gradient descent, Weng et al., USENIX ATC 2023). A shape for which the whole
pool has little room left weighs more: that is what keeps whole nodes for the gangs that need them, without
reserving any. All functions take rows of nodes, and none knows how the rows came about.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.shapes import WHOLE, MemberShape, Typical


@dataclass(frozen=True, eq=False, slots=True)
class Headroom:
    """What is free on each node of a set; infinite where a node's processors or memory are not known."""

    cards: Ints
    """Node × card: thousandths free, 0 where the node has no such card."""
    cpu_milli: Floats
    memory_mib: Floats
    kind: Ints
    """The class of the node's cards."""

    def rows(self, nodes: Ints) -> "Headroom":
        """Those of some nodes."""
        return Headroom(self.cards[nodes], self.cpu_milli[nodes], self.memory_mib[nodes], self.kind[nodes])


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """Node × typical shape: members it could hold, and thousandths of free card that are out of their reach."""

    holds: Floats
    stranded: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the policy: what stranded room and what scarce room counts, against a member that could have been held."""

    stranded: float = 4.0
    scarcity: float = 0.3


def outlook(room: Headroom, typical: Typical) -> Outlook:
    """What each node could hold. O(nodes · shapes)."""
    count = len(typical.shapes)
    both = typical.by_card[room.cards].sum(axis=1)
    holds, cut = both[:, :count], both[:, count:]
    if typical.several:
        np.floor_divide(holds, typical.devices, out=holds, where=typical.devices > 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        for free, wanted in ((room.cpu_milli, typical.cpu_milli), (room.memory_mib, typical.memory_mib)):
            if wanted.any():
                np.minimum(holds, np.where(wanted > 0, free[:, None] / wanted, np.inf), out=holds)
    holds[(holds < 1) | ~typical.accepts.T[room.kind]] = 0.0
    return Outlook(holds, np.where(holds > 0, cut, room.cards.sum(axis=1)[:, None]))


def prices(holds: Floats, capacity: float, typical: Typical, weights: Weights) -> Floats:
    """What losing room for one member of each shape costs, in cards; `holds` is what the whole pool could hold of each.

    The price doubles where that is the `scarcity` part of all `capacity` cards, and grows with its square below.
    """
    cards = typical.devices * typical.share / WHOLE
    part = np.maximum(holds, 1.0) * cards / max(capacity, 1.0)
    return np.asarray(typical.demand * cards * (1.0 + (weights.scarcity / part) ** 2), float)


def rates(price: Floats, typical: Typical, weights: Weights) -> Floats:
    """What one unit of each column of `Change.effects` costs, in cards per arrival."""
    return np.concatenate((price, weights.stranded * typical.demand)).astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """What one more member of a shape would do to each node; rows of nodes that cannot hold it are zero."""

    effects: npt.NDArray[np.float32]
    """Node × (per typical shape, members that could no longer be held; then, more cards out of its reach)."""
    card: Ints
    """The card that would be shared, −1 for whole cards, −2 where it does not fit."""

    @classmethod
    def nothing(cls, nodes: int, typical: Typical) -> "Change":
        """Rows to be filled."""
        return cls(np.zeros((nodes, 2 * len(typical.shapes)), np.float32), np.full(nodes, -2, np.int64))

    def costs(self, rate: Floats) -> Floats:
        """Of each node, infinite where it does not fit; equal changes cost the same to the last digit."""
        return np.where(self.card > -2, cost(self.effects, rate), np.inf)


def change(room: Headroom, before: Outlook, shape: MemberShape, able: Bools, typical: Typical) -> Change:
    """The change on every node if one member of `shape` went there; `able` tells which classes of card it accepts.

    A shared member goes to the fullest card that has room for it, the first of equals.
    """
    result = Change.nothing(len(room.cards), typical)
    enough = room.cards >= shape.share
    fits = (room.cpu_milli >= shape.cpu_milli) & (room.memory_mib >= shape.memory_mib)
    if shape.devices:
        fits &= (enough.sum(axis=1) >= shape.devices) & able[room.kind]
    rows = np.flatnonzero(fits)
    if not len(rows):
        return result
    cards = np.full(len(rows), -1)
    if shape.devices == 1 and not shape.whole:
        cards = np.argmin(np.where(enough[rows], room.cards[rows], 2 * WHOLE), axis=1)
    then = outlook(_after(room, rows, cards, shape), typical)
    result.effects[rows] = np.concatenate(
        (before.holds[rows] - then.holds, (then.stranded - before.stranded[rows]) / WHOLE), axis=1
    )
    result.card[rows] = cards
    return result


def cost(effects: npt.NDArray[np.float32], rate: Floats) -> Floats:
    """Cards per arrival that each row is worth, rounded beyond the noise of adding up; the least is best."""
    return np.round((effects @ rate).astype(float), 5)


def _after(room: Headroom, rows: Ints, cards: Ints, shape: MemberShape) -> Headroom:
    left = room.cards[rows]
    if shape.devices == 1 and not shape.whole:
        left[np.arange(len(rows)), cards] -= shape.share
    elif shape.devices:
        full = left == WHOLE
        left[full & (np.cumsum(full, axis=1) <= shape.devices)] = 0
    return Headroom(
        left, room.cpu_milli[rows] - shape.cpu_milli, room.memory_mib[rows] - shape.memory_mib, room.kind[rows]
    )
