"""Which bytes of an object nobody has asked for yet. Pure."""

from typing import NamedTuple

ALIGNED_BYTES = 4 * 2**20
"""Stores keep objects in pieces of this size or of a multiple of it: where a range ends inside of a piece, the store
opens it twice (seen: an eighth of a SeaweedFS server's processor time). Ranges shorter than two of them stay as they
are: they are dealt at the end, where all connections should end together.
"""


class Range(NamedTuple):
    """Bytes `[start, end)`; `restarts` tells a range of an object that was begun anew from one before."""

    start: int
    end: int
    restarts: int


class Gaps:
    """The missing parts, in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: list[tuple[int, int]] = [(0, size)] if size else []

    @property
    def left(self) -> int:
        """The number of missing bytes."""
        return sum(end - start for start, end in self._open)

    def take(self, length: int, restarts: int) -> Range | None:
        """The first missing bytes, at most `length` of them; a long range ends where a piece of the store ends."""
        if not self._open:
            return None
        start, end = self._open[0]
        cut = min(end, start + length)
        if cut < end and length >= 2 * ALIGNED_BYTES:
            cut = cut // ALIGNED_BYTES * ALIGNED_BYTES
        if cut == end:
            self._open.pop(0)
        else:
            self._open[0] = (cut, end)
        return Range(start, cut, restarts)

    def add(self, start: int, end: int) -> None:
        """These bytes are missing again."""
        if start < end:
            self._open = merged([*self._open, (start, end)])

    def remove(self, start: int, end: int) -> None:
        """These bytes are there."""
        if start >= end:
            return
        kept = []
        for low, high in self._open:
            kept += [(a, b) for a, b in ((low, min(high, start)), (max(low, end), high)) if a < b]
        self._open = kept

    def covered(self) -> dict[int, int]:
        """What is not missing: start → end."""
        covered, position = {}, 0
        for start, end in [*self._open, (self._size, self._size)]:
            if position < start:
                covered[position] = start
            position = end
        return covered


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in order, each once."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
