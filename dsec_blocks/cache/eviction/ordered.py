"""FIFO and LRU: one queue, for comparison."""

from collections.abc import Mapping
from typing import Any

from dsec_blocks.cache.eviction.policy import Item, Spared
from dsec_blocks.cache.eviction.queues import Queue


class Fifo:
    """Whoever came first leaves first."""

    def __init__(self, capacity_bytes: int) -> None:
        self._queue = Queue()

    def __contains__(self, key: str) -> bool:
        return key in self._queue

    def resident(self) -> Mapping[str, int]:
        """Bytes by bundle."""
        return self._queue.sizes()

    def hit(self, key: str) -> None:
        """Nothing changes."""

    def miss(self, key: str) -> None:
        """Nothing is remembered of the past."""

    def admit(self, key: str, *, size_bytes: int, refetch_seconds: float) -> bool:
        """To the end."""
        self._queue.push(key, Item(size_bytes, refetch_seconds))
        return True

    def evict(self, *, spared: Spared) -> str | None:
        """The oldest."""
        key = self._queue.oldest(spared=spared)
        if key is not None:
            self._queue.take(key)
        return key

    def forget(self, key: str) -> None:
        """Take it out."""
        self._queue.take(key)

    def to_json(self) -> dict[str, Any]:
        """The queue."""
        return {"queue": self._queue.to_json()}

    def restore(self, fields: Mapping[str, Any]) -> None:
        """The queue."""
        self._queue.restore(fields["queue"])


class Lru(Fifo):
    """Whoever was used longest ago leaves first."""

    def hit(self, key: str) -> None:
        """To the end again."""
        if key in self._queue:
            self._queue.renew(key)
