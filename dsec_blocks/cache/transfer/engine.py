"""A fetch: connections that take ranges, threads that hash behind them, and one place where it ends.

One connection asks first, for a few bytes: how long that takes tells how far the store is, and with others beside it
would tell how busy this process is. Each connection stays on its object while that has bytes left, so that its pieces
mostly arrive where the hash stands; then it helps the object that has most left for each connection. The first error
that no retry can mend stops all.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dsec_blocks.cache.errors import OriginUnreachable, TransferCancelled
from dsec_blocks.cache.origins.objects import Origin, RemoteObject
from dsec_blocks.cache.origins.ranges import RangesIgnored
from dsec_blocks.cache.transfer.attempts import Attempts
from dsec_blocks.cache.transfer.gaps import Range
from dsec_blocks.cache.transfer.journal import Journal
from dsec_blocks.cache.transfer.landing import Landing, Superseded
from dsec_blocks.cache.transfer.pace import Pace
from dsec_blocks.cache.transfer.settings import MIB, TransferSettings
from dsec_blocks.cache.transfer.sizing import JOURNAL_BYTES, connections_for, piece_bytes, range_bytes

_POLL_SECONDS = 0.1
_FIRST_ANSWER_SECONDS = 0.5
"""How long the other connections wait for the first one's answer."""
_PARTING_SECONDS = 1.0
_STREAM_TRIES = 5
MOST_OPEN = 128
"""Objects that are staged at once: a bundle of ten thousand files must not need ten thousand open ones."""


class Landed(NamedTuple):
    """One object that is complete and durable in the staging directory."""

    path: Path
    digest: str
    fetched_bytes: int
    verified: str


class Fetch:
    """One fetch of some objects into one staging directory."""

    def __init__(
        self,
        items: Sequence[RemoteObject],
        *,
        origin: Origin,
        staging: Path,
        journal: Journal,
        settings: TransferSettings,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.landed: dict[str, Landed] = {}
        self.connections = 0
        self._is_answered = origin.latency_seconds() is not None
        self._origin = origin
        self._settings = settings
        self._progress = progress
        self._cancelled = cancelled
        self._news = threading.Condition()
        self._told = threading.Lock()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._to_hash: deque[Landing] = deque()
        self._open: dict[int, Landing] = {}
        self._waiting = deque(sorted(items, key=lambda item: -item.size_bytes))
        self._staging = staging
        self._journal = journal
        self._threads: list[threading.Thread] = []
        self._pace = Pace(settings.bandwidth_bytes_per_second, now=time.monotonic, wait=self._stop.wait)
        hashers = min(4, os.cpu_count() or 1)
        self._piece = piece_bytes(settings, buffers=settings.max_connections + hashers)
        self._hashers = min(hashers, len(items))
        try:
            self._open_more()
        except BaseException:
            self._close()
            raise

    def run(self) -> None:
        """Bring everything. Raises the first error that no retry can mend, or `TransferCancelled`."""
        try:
            for _ in range(self._hashers):
                self._start(self._hash)
            self._connect()
            began = time.monotonic()
            while True:
                with self._news:
                    if self._failure is not None or not self._open:
                        break
                    self._news.wait(_POLL_SECONDS)
                if not self._is_answered and time.monotonic() - began > _FIRST_ANSWER_SECONDS:
                    self._is_answered = True
                    self._connect()
                if self._cancelled():
                    raise TransferCancelled("the fetch was cancelled; what arrived is kept for the next one")
            if self._failure is not None:
                raise self._failure
        finally:
            self._close()

    def _open_more(self) -> None:
        """Stage what comes next, the largest first: as many objects at once as there may be open files.

        Raises `LocalDiskError`. Whoever calls it holds the lock, or is alone.
        """
        while self._waiting and len(self._open) < MOST_OPEN:
            item = self._waiting.popleft()
            landing = Landing(item, staging=self._staging, journal=self._journal, changed=self._wake)
            if landing.digest is None:
                self._open[id(landing)] = landing
                self._to_hash.append(landing)
            else:  # the journal has all of it
                self._has_landed(landing)

    def _has_landed(self, landing: Landing) -> None:
        assert landing.digest is not None
        self._open.pop(id(landing), None)
        self.landed[landing.item.path] = Landed(landing.path, landing.digest, landing.fetched_bytes, landing.verified)

    def _connect(self) -> None:
        """As many connections as the latency asks for, once that is known; one before the first answer."""
        with self._news:
            sizes = [landing.left_bytes for landing in self._open.values() if landing.left_bytes]
            sizes += [item.size_bytes for item in self._waiting]
            useful = len(sizes) + sum(sizes) // (4 * MIB)
            wanted = min(connections_for(self._origin.latency_seconds(), self._settings), useful)
            if not self._is_answered:
                wanted = min(wanted, 1)
            while self.connections < wanted and not self._stop.is_set():
                self.connections += 1
                self._start(self._bring)

    def _start(self, work: Callable[[memoryview], None]) -> None:
        def run() -> None:
            try:
                work(memoryview(bytearray(self._piece)))
            except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits for the fetch
                self._fail(error)

        thread = threading.Thread(target=run, daemon=True, name=f"dsec-fetch-{work.__name__.strip('_')}")
        self._threads.append(thread)
        thread.start()

    def _bring(self, buffer: memoryview) -> None:
        current: Landing | None = None
        while (job := self._next_range(current)) is not None:
            current, part = job
            try:
                self._bring_range(current, part, buffer)
            except Superseded:
                pass
            finally:
                with self._news:
                    current.active -= 1
                    self._news.notify_all()

    def _next_range(self, current: Landing | None) -> tuple[Landing, Range] | None:
        with self._news:
            while self._open and not self._stop.is_set():
                if self.connections > connections_for(self._origin.latency_seconds(), self._settings):
                    self.connections -= 1  # the store is nearer than it seemed, on a machine that does much else
                    return None
                landing = current if current is not None and current.left_bytes else self._neediest()
                if landing is not None:
                    length = range_bytes(
                        left_bytes=landing.left_bytes,
                        connections=max(landing.active + 1, self._sharing()),
                        latency_seconds=self._origin.latency_seconds(),
                        is_first=not self._is_answered,
                    )
                    part = landing.take(length)
                    if part is not None:
                        landing.active += 1
                        return landing, part
                self._news.wait(_POLL_SECONDS)
        return None

    def _sharing(self) -> int:
        """How many connections will share an object once each has taken its first range."""
        needy = sum(1 for landing in self._open.values() if landing.left_bytes)
        return -(-self.connections // max(1, needy))

    def _neediest(self) -> Landing | None:
        needy = [landing for landing in self._open.values() if landing.left_bytes]
        return max(needy, key=lambda landing: landing.left_bytes / (landing.active + 1), default=None)

    def _bring_range(self, landing: Landing, part: Range, buffer: memoryview) -> None:
        position, noted, restarts = part.start, part.start, part.restarts
        attempts = Attempts(patience_seconds=self._settings.patience_seconds, now=time.monotonic, wait=self._stop.wait)

        def attempt() -> None:
            nonlocal position, noted
            pieces = self._origin.read(landing.item, start=position, length=part.end - position, buffer=buffer)
            with closing(pieces):  # type: ignore[type-var]
                for piece in pieces:
                    # Before it lands: a fetch would otherwise end before the last piece of each connection was due.
                    self._pace.spend(len(piece))
                    if self._stop.is_set():
                        raise Superseded
                    can_hash = landing.land(piece, position, restarts=restarts)
                    position += len(piece)
                    attempts.progressed(len(piece))
                    if position == part.end or position - noted >= JOURNAL_BYTES:
                        landing.note(noted, position, restarts=restarts)
                        noted = position
                    if can_hash or landing.is_hashed:
                        self._hash_soon(landing)
                    self._arrived(len(piece))

        def attempt_unless_stopped() -> None:
            if self._stop.is_set():
                raise Superseded
            try:
                attempt()
            except RangesIgnored:
                landing.restart(restarts=restarts, single_stream=True)
                raise Superseded from None
            except OSError:
                if landing.is_single_stream and landing.restarts < _STREAM_TRIES:
                    landing.restart(restarts=restarts, single_stream=True)
                    raise Superseded from None
                raise

        try:
            attempts.retrying()(attempt_unless_stopped)
        except OSError as error:
            raise OriginUnreachable(
                f"{landing.item.uri}: the origin does not deliver ({error}); nothing was published, and what arrived "
                "is kept for the next try"
            ) from error

    def _arrived(self, count: int) -> None:
        with self._told:
            self._progress(count)
            self._is_answered = True
        if self.connections < connections_for(self._origin.latency_seconds(), self._settings):
            self._connect()

    def _hash(self, buffer: memoryview) -> None:
        while True:
            with self._news:
                while not self._to_hash:
                    if not self._open or self._stop.is_set():
                        return
                    self._news.wait(_POLL_SECONDS)
                landing = self._to_hash.popleft()
            try:
                landing.catch_up(buffer)
                if landing.is_hashed and self._claim(landing) and not landing.finish(self._origin.stored_checksum):
                    self._unclaim(landing)
            except Superseded:
                continue
            with self._news:
                if landing.digest is not None and id(landing) in self._open:
                    self._has_landed(landing)
                    self._open_more()
                self._news.notify_all()

    def _claim(self, landing: Landing) -> bool:
        """Only one thread finishes an object, however often it was said to be ready."""
        with self._news:
            if landing.is_finishing:
                return False
            landing.is_finishing = True
            return True

    def _unclaim(self, landing: Landing) -> None:
        with self._news:
            landing.is_finishing = False

    def _hash_soon(self, landing: Landing) -> None:
        with self._news:
            if landing not in self._to_hash:
                self._to_hash.append(landing)
                self._news.notify_all()

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._news:
            if self._failure is None and not self._stop.is_set():
                self._failure = error
            self._stop.set()
            self._news.notify_all()

    def _close(self) -> None:
        self._stop.set()
        self._wake()
        give_up = time.monotonic() + _PARTING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        for landing in list(self._open.values()):
            landing.close()
