"""Policies that give each bundle a number and evict the lowest: GDSF behind a probation queue, and frequency × size."""

import heapq
from collections.abc import Mapping
from typing import Any

from dsec_blocks.cache.eviction.policy import Item, Spared
from dsec_blocks.cache.eviction.queues import Ghost, Queue

PROBATION_SHARE = 0.10
GHOST_SHARE = 0.90
HITS_TO_STAY = 2


class Ranked:
    """Bundles by their score, lowest first. Scores only change when a bundle is used."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._items: dict[str, Item] = {}
        self._scores: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._turn = 0

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> Item | None:
        """The entry, or None."""
        return self._items.get(key)

    def sizes(self) -> dict[str, int]:
        """Bytes by bundle."""
        return {key: item.size_bytes for key, item in self._items.items()}

    def put(self, key: str, item: Item, score: float) -> None:
        """Add, or give a new score; among equal scores the one that was put first goes first."""
        self.take(key)
        self._turn += 1
        self._items[key] = item
        self._scores[key] = (score, self._turn)
        self.used_bytes += item.size_bytes
        heapq.heappush(self._heap, (score, self._turn, key))

    def take(self, key: str) -> Item | None:
        """Remove an entry; its row in the heap goes stale."""
        item = self._items.pop(key, None)
        if item is not None:
            self.used_bytes -= item.size_bytes
            del self._scores[key]
        return item

    def pop_lowest(self, *, spared: Spared) -> tuple[str, Item, float] | None:
        """Remove the entry with the lowest score that need not be spared."""
        aside, found = [], None
        while self._heap and found is None:
            score, turn, key = row = heapq.heappop(self._heap)
            if self._scores.get(key) != (score, turn):
                continue
            if spared(key):
                aside.append(row)
                continue
            item = self.take(key)
            assert item is not None
            found = (key, item, score)
        for row in aside:
            heapq.heappush(self._heap, row)
        return found

    def to_json(self) -> list[list[Any]]:
        """Rows, lowest score first."""
        order = sorted(self._items, key=lambda key: self._scores[key])
        return [
            [key, item.size_bytes, item.refetch_seconds, item.frequency, self._scores[key][0]]
            for key, item in ((key, self._items[key]) for key in order)
        ]

    def restore(self, rows: list[list[Any]]) -> None:
        """Replace the content by rows of `to_json`."""
        self.used_bytes, self._turn = 0, 0
        self._items, self._scores, self._heap = {}, {}, []
        for key, size_bytes, refetch_seconds, frequency, score in rows:
            self.put(key, Item(size_bytes, refetch_seconds, frequency), score)


class Gdsf:
    """Greedy-dual-size-frequency with the seconds of a refetch as the cost, behind a probation queue.

    `H = L + frequency × refetch seconds / size`, where L is the score of the last victim: what is not used sinks
    relative to what comes (Cherkasova, HPL-98-69R1). Probation is what keeps one-off reads from displacing models.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.main_bytes = capacity_bytes - int(capacity_bytes * PROBATION_SHARE)
        self._probation = Queue()
        self._main = Ranked()
        self._ghost = Ghost(int(capacity_bytes * GHOST_SHARE))
        self._remembered: str | None = None
        self._floor = 0.0
        """L."""

    def __contains__(self, key: str) -> bool:
        return key in self._probation or key in self._main

    def resident(self) -> Mapping[str, int]:
        """Bytes by bundle."""
        return {**self._probation.sizes(), **self._main.sizes()}

    def hit(self, key: str) -> None:
        """Count it; in the main set its score rises."""
        item = self._probation.get(key)
        if item is not None:
            item.frequency += 1
            return
        item = self._main.get(key)
        if item is not None:
            item.frequency += 1
            self._main.put(key, item, self._score(item))

    def miss(self, key: str) -> None:
        """Recall whether it left probation a short while ago."""
        self._remembered = key if self._ghost.forget(key) else None

    def admit(self, key: str, *, size_bytes: int, refetch_seconds: float) -> bool:
        """On probation, or straight into the main set if it was missed after it had left."""
        remembered, self._remembered = self._remembered == key, None
        item = Item(size_bytes, refetch_seconds)
        if remembered:
            self._main.put(key, item, self._score(item))
        else:
            self._probation.push(key, item)
        return True

    def evict(self, *, spared: Spared) -> str | None:
        """From the main set while it is over its share, else from probation."""
        if self._main.used_bytes > self.main_bytes:
            return self._evict_main(spared=spared) or self._evict_probation(spared=spared)
        return self._evict_probation(spared=spared) or self._evict_main(spared=spared)

    def forget(self, key: str) -> None:
        """Take it out of wherever it is."""
        self._probation.take(key)
        self._main.take(key)
        self._ghost.forget(key)

    def to_json(self) -> dict[str, Any]:
        """Queue, scores, ghost and L."""
        return {
            "probation": self._probation.to_json(),
            "main": self._main.to_json(),
            "ghost": self._ghost.to_json(),
            "floor": self._floor,
        }

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Queue, scores, ghost and L."""
        self._probation.restore(fields["probation"])
        self._main.restore(fields["main"])
        self._ghost.restore(fields["ghost"])
        self._floor = fields["floor"]

    def _score(self, item: Item) -> float:
        return self._floor + (item.frequency + 1) * item.refetch_seconds / max(1, item.size_bytes)

    def _evict_probation(self, *, spared: Spared) -> str | None:
        while (key := self._probation.oldest(spared=spared)) is not None:
            item = self._probation.take(key)
            assert item is not None
            if item.frequency >= HITS_TO_STAY:
                self._main.put(key, item, self._score(item))
                continue
            self._ghost.remember(key, item)
            return key
        return None

    def _evict_main(self, *, spared: Spared) -> str | None:
        found = self._main.pop_lowest(spared=spared)
        if found is None:
            return None
        key, _, self._floor = found
        return key


class FrequencySize:
    """Frequency × size, taken literally: what the source article weighs, so that small files displace no big model.

    Nothing ages: a bundle that was popular once stays. `ages` adds the sinking floor of GDSF, for comparison.
    """

    def __init__(self, capacity_bytes: int, *, ages: bool = False) -> None:
        self.ages = ages
        self._ranked = Ranked()
        self._floor = 0.0

    def __contains__(self, key: str) -> bool:
        return key in self._ranked

    def resident(self) -> Mapping[str, int]:
        """Bytes by bundle."""
        return self._ranked.sizes()

    def hit(self, key: str) -> None:
        """Its score rises."""
        item = self._ranked.get(key)
        if item is not None:
            item.frequency += 1
            self._ranked.put(key, item, self._score(item))

    def miss(self, key: str) -> None:
        """Nothing is remembered of the past."""

    def admit(self, key: str, *, size_bytes: int, refetch_seconds: float) -> bool:
        """With a frequency of one."""
        item = Item(size_bytes, refetch_seconds)
        self._ranked.put(key, item, self._score(item))
        return True

    def evict(self, *, spared: Spared) -> str | None:
        """The lowest score."""
        found = self._ranked.pop_lowest(spared=spared)
        if found is None:
            return None
        if self.ages:
            self._floor = found[2]
        return found[0]

    def forget(self, key: str) -> None:
        """Take it out."""
        self._ranked.take(key)

    def to_json(self) -> dict[str, Any]:
        """Scores and the floor."""
        return {"ranked": self._ranked.to_json(), "floor": self._floor}

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Scores and the floor."""
        self._ranked.restore(fields["ranked"])
        self._floor = fields["floor"]

    def _score(self, item: Item) -> float:
        return self._floor + (item.frequency + 1) * float(item.size_bytes)
