"""The circuit breaker before a cluster's store: one that does not answer is waited for once, not at each question of
each start. While the breaker is open everybody goes to the origin at once; half-open, the store is asked briefly.

What one process found out all of the node know, by a mark in the cache directory. Nothing rests on it: a mark that
cannot be written or read costs another wait, and one that is out of date some bytes from the origin.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError

from dsec_blocks.cache.errors import OriginUnreachable
from dsec_blocks.cache.origins.ranges import TRY_AGAIN
from dsec_blocks.gateways import files
from dsec_blocks.gateways.objects import ObjectStoreError, status_of
from dsec_blocks.model.clock import Clock

MARK = ".circuit-breaker.json"
"""Begins with a dot: a directory may get it before it is a cache, and a sweep takes it away when it is a day old."""
PATIENCE_SECONDS = 10.0
"""How long a start asks a store that answered so far: as long as one takes that is started again."""
OPEN_SECONDS = 60.0
"""How long the store is not asked at all after it was asked in vain."""
HALF_OPEN_SECONDS = 600.0
"""The age of the last failure from which the breaker is closed; between the two it is half-open."""
HALF_OPEN_PATIENCE_SECONDS = 2.0


class CircuitBreaker:
    """What is known of one store that may not answer. `mark` None: known to this process only. Threads may share it."""

    def __init__(self, store: str, *, mark: Path | None, clock: Clock, say: Callable[[str], None]) -> None:
        self._store = store
        self._mark = mark
        self._clock = clock
        self._say = say
        self._failed_at: float | None = None
        self._is_told = False

    def is_open(self) -> bool:
        """Whether the store is not to be asked now. A process says so once."""
        age = self._age()
        if age is None or age > OPEN_SECONDS:
            return False
        if not self._is_told:
            self._is_told = True
            self._say(f"the cluster level is left out: {self._store} did not answer {age:.0f} s ago")
        return True

    def patience_seconds(self) -> float:
        """How long a question to the store may take: briefly unless the breaker is closed."""
        age = self._age()
        return PATIENCE_SECONDS if age is None or age > HALF_OPEN_SECONDS else HALF_OPEN_PATIENCE_SECONDS

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Questions to the store; one that had no answer opens the breaker. Raises what they raise."""
        try:
            yield
        except ObjectStoreError as error:
            if is_no_answer(error):
                self._trip(str(error))
            raise

    def _trip(self, why: str) -> None:
        self._failed_at = self._clock.now()
        if not self._is_told:
            self._is_told = True
            self._say(
                f"the cluster level is left out: {self._store} does not answer; the origin is asked instead, and the "
                f"store again in {OPEN_SECONDS:.0f} s ({why})"
            )
        self._write(self._failed_at)

    def _age(self) -> float | None:
        """Seconds since the store was last asked in vain; None if it was not, or by a clock that was set back."""
        told = self._read()
        if told is None and self._failed_at is not None:
            self._write(self._failed_at)  # the directory may not have been there when the store failed
        known = [at for at in (told, self._failed_at) if at is not None]
        age = self._clock.now() - max(known) if known else -1.0
        return age if age >= 0 else None

    def _read(self) -> float | None:
        if self._mark is None:
            return None
        try:
            told = json.loads(self._mark.read_bytes())
            return float(told["failed_at"]) if told["store"] == self._store else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _write(self, failed_at: float) -> None:
        if self._mark is None or not self._mark.parent.is_dir():
            return
        told = json.dumps({"store": self._store, "failed_at": failed_at}).encode()
        with suppress(OSError):
            files.announce(self._mark, told, at="cache.cluster.breaker.mark")


def is_no_answer(error: ObjectStoreError) -> bool:
    """Whether the store was waited for in vain. One that refuses answers, and at once."""
    cause = error.__cause__
    if isinstance(cause, (NoCredentialsError, PartialCredentialsError)):
        return False
    return isinstance(cause, (BotoCoreError, OriginUnreachable)) or status_of(cause or error) in TRY_AGAIN
