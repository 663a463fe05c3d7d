"""Work that must not hold up the loop: one piece per key at a time.

A claim waits for the Prefect API, and the loop must go on noticing deaths and releases meanwhile. The key is the
gang, so that its claim, eviction and ending never overlap. An errand that fails is simply forgotten: the ledger still
says what is to be done, so a later tick starts it again, after a pause that grows.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import Fenced, StaleAttempt
from dsec_workers.prefect_api import ApiUnavailable

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
AT_ONCE = 32
"""Of claims, and of all else."""
CLAIM = "claim"
"""Work of this name is done silently while there is more of it."""


class Errands:
    """Background pieces of work in a task group, by key."""

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        *,
        clock: Clock,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        done: Callable[[], None],
        fenced: Callable[[], None],
        limit: int = AT_ONCE,
    ) -> None:
        self._group = group
        self._clock = clock
        self._log = log
        self._done = done
        self._fenced = fenced
        self._limiter = anyio.CapacityLimiter(limit)
        self._claims = anyio.CapacityLimiter(limit)
        """Of their own: who has been given devices does not wait until thousands of victims are back in the line."""
        self._running: dict[str, str] = {}
        self._names: Counter[str] = Counter()
        self._turned_away: set[str] = set()
        self._ended: dict[str, float] = {}
        self._paused_until: dict[str, tuple[float, float]] = {}

    def busy(self, key: str) -> bool:
        """Whether a piece of work for `key` is running, or pausing after a failure."""
        if key in self._running:
            return True
        until, _ = self._paused_until.get(key, (0.0, 0.0))
        return self._clock.monotonic() < until

    def running(self, prefix: str) -> int:
        """How many pieces whose name begins with `prefix` are running."""
        return sum(count for name, count in self._names.items() if name.startswith(prefix))

    def lately(self, name: str, seconds: float) -> bool:
        """Whether a piece of work called `name` is running, or ended within the last `seconds`."""
        ended = self._ended.get(name, float("-inf"))
        return self.running(name) > 0 or self._clock.monotonic() - ended < seconds

    def keys_of(self, name: str) -> set[str]:
        """For whom a piece of work called `name` is running."""
        return {key for key, running in self._running.items() if running == name}

    def running_for(self, key: str, name: str) -> bool:
        """Whether the piece of work called `name` is running for `key`."""
        return self._running.get(key) == name

    def start(self, key: str, name: str, work: Callable[..., Awaitable[Any]], *args: Any) -> bool:
        """Start `work(*args)` unless the key is busy."""
        if self.busy(key):
            if self._running.get(key, name) != name:
                self._turned_away.add(key)
            return False
        self._running[key] = name
        self._names[name] += 1
        self._group.start_soon(self._run, key, name, work, args)
        return True

    async def settle(self) -> None:
        """Wait until nothing runs."""
        while self._running:  # noqa: ASYNC110 - for tests, drains and run-once, not worth an event
            await anyio.sleep(0.01)

    async def _run(self, key: str, name: str, work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        went_well = False
        try:
            async with self._claims if name == CLAIM else self._limiter:
                await work(*args)
        except Fenced:
            self._fenced()
        except StaleAttempt as error:
            self._log.info("%s of %s is out of date: %s", name, key, error)
        except ApiUnavailable as error:
            self._log.warning("%s of %s waits for the Prefect API: %s", name, key, error)
            self._pause(key)
        except Exception:  # noqa: BLE001 - one gang's trouble must not end the others'
            self._log.exception("%s of %s failed; it will be tried again", name, key)
            self._pause(key)
        else:
            went_well = True
            self._paused_until.pop(key, None)
        finally:
            self._running.pop(key, None)
            self._names[name] -= 1
            self._ended[name] = self._clock.monotonic()
            if key in self._turned_away or not (went_well and name == CLAIM and self.running(CLAIM)):
                self._turned_away.discard(key)
                self._done()

    def _pause(self, key: str) -> None:
        _, last = self._paused_until.get(key, (0.0, 0.0))
        pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, last * 2))
        self._paused_until[key] = (self._clock.monotonic() + pause, pause)
