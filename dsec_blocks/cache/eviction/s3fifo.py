"""S3-FIFO: a small queue on probation, a main queue with second chances, and a memory of who left the small one.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. Most bundles that pass a GPU node are wanted
once; the small queue lets them through without disturbing those that are wanted again. One queue entry is a bundle.

Two things differ from the paper, because bundles are few, large and of very different sizes (docs/decisions/006 has the
figures). A bundle larger than the whole small queue is on probation like any other: refusing it is no choice when a job
needs it on the disk, and taking it into the main queue unproven is what costs most. And a second chance has a price:
a bundle of average size pays one hit a round, a larger one more, a smaller one less.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dsec_blocks.cache.eviction.policy import Item, Spared
from dsec_blocks.cache.eviction.queues import Ghost, Queue

SMALL_SHARE = 0.10
GHOST_SHARE = 0.90
HITS_TO_STAY = 2
"""Hits on probation that move a bundle into the main queue instead of out."""
MOST_CHANCES = 3
"""Hits that count at most when a bundle in the main queue pays for another round."""
PRICE_EXPONENT = 0.5
"""A round costs (bundle's size ÷ mean size in the main queue) to this power, in hits; 0 is the paper's price of one."""
_LEAST_PRICE, _MOST_PRICE = 1 / 8, 8.0


class S3Fifo:
    """The shares are of the capacity in bytes; `price_exponent=0, refuses_large=True` is libCacheSim's S3-FIFO."""

    def __init__(
        self, capacity_bytes: int, *, price_exponent: float = PRICE_EXPONENT, refuses_large: bool = False
    ) -> None:
        self.small_bytes = int(capacity_bytes * SMALL_SHARE)
        self.main_bytes = capacity_bytes - self.small_bytes
        self.price_exponent = price_exponent
        self.refuses_large = refuses_large
        self._small, self._main = Queue(), Queue()
        self._ghost = Ghost(int(capacity_bytes * GHOST_SHARE))
        self._remembered: str | None = None
        """The last miss, if it was on the ghost list."""

    def __contains__(self, key: str) -> bool:
        return key in self._small or key in self._main

    def resident(self) -> Mapping[str, int]:
        """Bytes by bundle."""
        return {**self._small.sizes(), **self._main.sizes()}

    def hit(self, key: str) -> None:
        """Count it; no queue is reordered."""
        item = self._small.get(key) or self._main.get(key)
        if item is not None:
            item.frequency += 1

    def miss(self, key: str) -> None:
        """Recall whether it left probation a short while ago."""
        self._remembered = key if self._ghost.forget(key) else None

    def admit(self, key: str, *, size_bytes: int, refetch_seconds: float) -> bool:
        """On probation, or into the main queue if it was missed after it had left."""
        remembered, self._remembered = self._remembered == key, None
        if self.refuses_large and not remembered and size_bytes >= self.small_bytes:
            return False
        queue = self._main if remembered else self._small
        queue.push(key, Item(size_bytes, refetch_seconds))
        return True

    def evict(self, *, spared: Spared) -> str | None:
        """From the main queue while it is over its share, else from probation."""
        first: Callable[..., str | None] = self._evict_main
        second: Callable[..., str | None] = self._evict_small
        if self._main.used_bytes <= self.main_bytes and len(self._small):
            first, second = second, first
        return first(spared=spared) or second(spared=spared) or first(spared=spared)

    def forget(self, key: str) -> None:
        """Take it out of wherever it is."""
        for queue in (self._small, self._main):
            queue.take(key)
        self._ghost.forget(key)

    def to_json(self) -> dict[str, Any]:
        """The three queues."""
        return {
            "small": self._small.to_json(),
            "main": self._main.to_json(),
            "ghost": self._ghost.to_json(),
        }

    def restore(self, fields: Mapping[str, Any]) -> None:
        """The three queues."""
        self._small.restore(fields["small"])
        self._main.restore(fields["main"])
        self._ghost.restore(fields["ghost"])

    def _evict_small(self, *, spared: Spared) -> str | None:
        while (key := self._small.oldest(spared=spared)) is not None:
            item = self._small.take(key)
            assert item is not None
            if item.frequency >= HITS_TO_STAY:
                item.frequency = 0
                self._main.push(key, item)
                continue
            self._ghost.remember(key, item)
            return key
        return None

    def _evict_main(self, *, spared: Spared) -> str | None:
        while (key := self._main.oldest(spared=spared)) is not None:
            item = self._main.take(key)
            assert item is not None
            if item.frequency <= 0:
                return key
            item.frequency = max(0.0, min(item.frequency, MOST_CHANCES) - self._price(item))
            self._main.push(key, item)
        return None

    def _price(self, item: Item) -> float:
        if not self.price_exponent or not len(self._main):
            return 1.0
        mean_bytes = max(1.0, (self._main.used_bytes + item.size_bytes) / (len(self._main) + 1))
        return float(min(_MOST_PRICE, max(_LEAST_PRICE, (item.size_bytes / mean_bytes) ** self.price_exponent)))
