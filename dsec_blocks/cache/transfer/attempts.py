"""When a range is tried again, and when that is given up: one policy for every origin.

Tried again: a broken connection, a body that ends early, a time-out, 408, 429 and 5xx, an answer to another question.
It goes on behind the last good byte. Given up: when nothing arrived for as long as the patience lasts, or when each
try brings next to nothing. Everything else (refused, changed, a full disk) is a clear end at once.
"""

import random
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from dsec_blocks.cache.origins.ranges import OriginBusy

_FEW_BYTES = 64 * 1024
_MANY_TRIES = 30
_LONGEST_PAUSE = 10.0


class Attempts:
    """The tries of one range, and what they brought."""

    def __init__(self, *, patience_seconds: float, now: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._patience_seconds = patience_seconds
        self._now = now
        self._wait = wait
        self._since = now()
        self._in_vain = 0
        self._brought = 0

    def progressed(self, count: int) -> None:
        """Bytes arrived."""
        self._since = self._now()
        self._in_vain = 0
        self._brought += count

    def retrying(self) -> Retrying:
        """The tries; `OSError` is worth another one."""
        return Retrying(
            retry=retry_if_exception_type(OSError),
            wait=self._pause,
            stop=self._is_over,
            sleep=self._sleep,
            reraise=True,
        )

    def _is_over(self, state: RetryCallState) -> bool:
        tries = state.attempt_number
        is_trickle = tries >= _MANY_TRIES and self._brought < tries * _FEW_BYTES
        return is_trickle or self._now() - self._since >= self._patience_seconds

    def _pause(self, state: RetryCallState) -> float:
        self._in_vain += 1
        pause = random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2 ** min(self._in_vain, 10)))
        error = state.outcome.exception() if state.outcome else None
        return max(pause, min(error.retry_after, 60.0)) if isinstance(error, OriginBusy) else pause

    def _sleep(self, seconds: float) -> None:
        self._wait(seconds)
