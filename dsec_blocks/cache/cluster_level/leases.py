"""The fill leases as one node sees them: its own, which it keeps alive, and the others', which it watches."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from dsec_blocks.ledger.fills import Fill, FillFence, Fills
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import Fenced, LedgerError

BEAT_SECONDS = 1.0
TAKEOVER_SECONDS = 10.0
"""How long a filler may be silent before another node takes its object over."""


class Watch:
    """Which objects of others may be taken over now. One thread uses it."""

    def __init__(self, ledger: Fills, clock: Clock, *, holder: str, takeover_seconds: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._holder = holder
        self._takeover_seconds = takeover_seconds
        self._seen: dict[str, tuple[Fill, float]] = {}

    def look(self, keys: Iterable[str]) -> dict[str, Fill]:
        """The rows as they are now, remembered since when they have not changed."""
        rows = self._ledger.fills(list(keys))
        now = self._clock.monotonic()
        for key, row in rows.items():
            before = self._seen.get(key)
            if before is None or (before[0].token, before[0].beat) != (row.token, row.beat):
                self._seen[key] = (row, now)
        return rows

    def is_free(self, key: str, rows: dict[str, Fill]) -> bool:
        """Whether nobody is at it, or whoever is has not moved for too long."""
        row = rows.get(key)
        if row is None or row.ended:
            return True
        return self._clock.monotonic() - self._seen[key][1] >= self._takeover_seconds

    def take(self, key: str, rows: dict[str, Fill]) -> FillFence | None:
        """The lease, if nobody was faster."""
        return self._ledger.take_fill(key, self._holder, seen=rows.get(key))


class Own:
    """The leases that this node holds."""

    def __init__(self, ledger: Fills, fences: Iterable[FillFence]) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._fences = {fence.key: fence for fence in fences}
        self._over = threading.Event()

    def has(self, key: str) -> bool:
        """Whether the lease is still this node's, as far as it knows."""
        return key in self._fences

    def end(self, key: str) -> bool:
        """Give one back; False if it was taken over meanwhile."""
        with self._lock:
            fence = self._fences.pop(key, None)
        if fence is None:
            return False
        try:
            self._ledger.end_fill(fence)
        except Fenced:
            return False
        return True

    @contextmanager
    def beating(self) -> Iterator["Own"]:
        """Keep them alive meanwhile, and give back what is left."""
        thread = threading.Thread(target=self._beat, daemon=True, name="dsec-fill-beat")
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            for key in list(self._fences):
                with suppress(LedgerError):
                    self.end(key)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with self._lock:
                fences = list(self._fences.values())
            with suppress(LedgerError):  # the next beat tells
                for lost in self._ledger.beat_fills(fences):
                    with self._lock:
                        self._fences.pop(lost.key, None)
