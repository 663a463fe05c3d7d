"""A cap on bandwidth that all connections of a fetch share."""

import threading
from collections.abc import Callable


class Pace:
    """Spends bytes at a steady rate. `now` is monotonic; `wait` sleeps, and may end early when the fetch does."""

    def __init__(
        self, bytes_per_second: float | None, *, now: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._wait = wait
        self._lock = threading.Lock()
        self._free_at = now()

    def spend(self, count: int) -> None:
        """Account for `count` bytes that arrived, and wait until they were due."""
        if self._rate is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, self._now()) + count / self._rate
            pause = self._free_at - self._now()
        if pause > 0:
            self._wait(pause)
