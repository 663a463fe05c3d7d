"""A queue of bundles that knows how many bytes are in it."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from dsec_blocks.cache.eviction.policy import Item, Spared


class Queue:
    """First in, first out; any entry can be looked up, taken out, or moved to the end."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._items: OrderedDict[str, Item] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def sizes(self) -> dict[str, int]:
        """Bytes by bundle, oldest first."""
        return {key: item.size_bytes for key, item in self._items.items()}

    def get(self, key: str) -> Item | None:
        """The entry, or None."""
        return self._items.get(key)

    def push(self, key: str, item: Item) -> None:
        """Add at the end."""
        self.take(key)
        self._items[key] = item
        self.used_bytes += item.size_bytes

    def take(self, key: str) -> Item | None:
        """Remove an entry from wherever it is."""
        item = self._items.pop(key, None)
        if item is not None:
            self.used_bytes -= item.size_bytes
        return item

    def renew(self, key: str) -> None:
        """Move an entry to the end."""
        self._items.move_to_end(key)

    def pop_oldest(self) -> tuple[str, Item]:
        """Remove the entry that has been in longest."""
        key, item = self._items.popitem(last=False)
        self.used_bytes -= item.size_bytes
        return key, item

    def oldest(self, *, spared: Spared) -> str | None:
        """The oldest entry that need not be spared."""
        return next((key for key in self._items if not spared(key)), None)

    def to_json(self) -> list[list[Any]]:
        """Rows, oldest first."""
        return [[key, item.size_bytes, item.refetch_seconds, item.frequency] for key, item in self._items.items()]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Replace the content by rows of `to_json`."""
        self._items.clear()
        self.used_bytes = 0
        for key, size_bytes, refetch_seconds, frequency in rows:
            self.push(key, Item(size_bytes, refetch_seconds, frequency))


class Ghost:
    """Names of bundles that left a short while ago: as many as would fill `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._queue = Queue()

    def __contains__(self, key: str) -> bool:
        return key in self._queue

    def remember(self, key: str, item: Item) -> None:
        """It has just left; those that left long ago are forgotten for it."""
        if item.size_bytes > self.capacity_bytes:
            return
        while self._queue.used_bytes + item.size_bytes > self.capacity_bytes:
            self._queue.pop_oldest()
        self._queue.push(key, item)

    def forget(self, key: str) -> bool:
        """Whether it was remembered; it no longer is."""
        return self._queue.take(key) is not None

    def to_json(self) -> list[list[Any]]:
        """Rows, oldest first."""
        return self._queue.to_json()

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Replace the content by rows of `to_json`."""
        self._queue.restore(rows)
