"""One object on its way to the disk: which bytes are still to be asked for, written, and hashed.

Bytes arrive over several connections and in any order; the hash wants them in order. A piece that arrives just where
the hash stands is hashed from the buffer it lies in. What is ahead of it is written and hashed later, read back from
the page cache. So memory does not grow with the number of ranges in flight, and nothing is read twice from the disk.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsec_blocks.cache.errors import ContentMismatch
from dsec_blocks.cache.origins.objects import RemoteObject
from dsec_blocks.cache.transfer.disk import on_disk
from dsec_blocks.cache.transfer.gaps import Gaps, Range
from dsec_blocks.cache.transfer.hashing import ContentHash
from dsec_blocks.cache.transfer.journal import Journal, staged_path
from dsec_blocks.gateways import files
from dsec_blocks.gateways.staged import StagedFile

PREFIX_BYTES = 32 * 2**20
"""How often the hash of what came so far is noted."""


class Superseded(Exception):
    """The object is fetched anew meanwhile; what this connection brings is of no use."""


class Landing:
    """The staged file of one object. Thread-safe; `changed` is called, without a lock held, when there is news."""

    def __init__(self, item: RemoteObject, *, staging: Path, journal: Journal, changed: Callable[[], None]) -> None:
        self.item = item
        self.path = staged_path(staging, item)
        self.fetched_bytes = 0
        self.digest: str | None = None
        self.verified = "length"
        self.is_single_stream = False
        self.restarts = 0
        self.active = 0
        self.is_finishing = False
        self._journal = journal
        self._changed = changed
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._using = 0
        self._is_closed = False
        self._is_hashing = False
        self._noted_at = 0
        self._mismatches = 0
        self._file: StagedFile | None = None
        self._hash = self._new_hash()
        self._ahead: dict[int, int] = {}
        self._expected: dict[int, str] = {}
        self._gaps = Gaps(item.size_bytes)
        self._take_up()

    @property
    def left_bytes(self) -> int:
        """What nobody has asked for yet."""
        return self._gaps.left

    @property
    def is_hashed(self) -> bool:
        """Whether every byte is there and went through the hash."""
        return self._hash.offset == self.item.size_bytes

    def take(self, length: int) -> Range | None:
        """The next range to ask for, of at most `length` bytes; the whole object if it comes as one stream."""
        with self._lock:
            return self._gaps.take(self.item.size_bytes if self.is_single_stream else length, self.restarts)

    def give_back(self, rest: Range) -> None:
        """A range that this connection will not bring after all."""
        with self._lock:
            if rest.restarts == self.restarts:
                self._gaps.add(rest.start, rest.end)

    def land(self, piece: memoryview, offset: int, *, restarts: int) -> bool:
        """Write a piece, and hash it if it is next; True if more can be hashed now: see `catch_up`.

        Raises `LocalDiskError`, or `Superseded`.
        """
        file = self._begin_use(restarts)
        try:
            with on_disk(self.path):
                file.write(piece, offset, at="cache.transfer.write")
        finally:
            self._end_use()
        with self._lock:
            if restarts != self.restarts:
                raise Superseded
            self.fetched_bytes += len(piece)
            is_next = not self._is_hashing and self._hash.offset == offset and not self._expected
            if not is_next:
                self._ahead[offset] = offset + len(piece)
                return self._can_catch_up()
            self._is_hashing = True
        self._feed(piece)
        with self._lock:
            self._is_hashing = False
            return self._can_catch_up()

    def note(self, start: int, end: int, *, restarts: int) -> None:
        """Journal a finished unit of a range."""
        if restarts == self.restarts:
            self._journal.done(self.item, start, end)

    def catch_up(self, buffer: memoryview) -> None:
        """Hash, from the page cache, all that lies ahead without a gap. One thread at a time does it."""
        with self._lock:
            if not self._can_catch_up():
                return
            self._is_hashing = True
        good, bad = self._hash.copy() if self._expected else None, False
        try:
            while not bad and (end := self._next_end()) is not None:
                stop = min((at for at in self._expected if self._hash.offset < at < end), default=end)
                with self._lock:
                    if stop != end:
                        self._ahead[stop] = end
                file, restarts = self._begin_use(self.restarts), self.restarts
                try:
                    self._read_back(file, stop, buffer)
                finally:
                    self._end_use()
                promised = self._expected.pop(stop, None)
                if promised is not None and restarts == self.restarts:
                    bad = promised != self._hash.digest
                    if bad:
                        assert good is not None
                        self._refetch(good, stop)
                    good = self._hash.copy()
        except BaseException:
            with self._lock:
                self._is_hashing = False
            raise
        if bad:
            with self._lock:
                self._is_hashing = False
            self._changed()

    def restart(self, *, restarts: int, single_stream: bool) -> None:
        """Fetch everything again, once: harmless for a caller whose `restarts` is out of date."""
        with self._lock:
            while self._is_hashing and restarts == self.restarts:
                self._quiet.wait(0.01)
            if restarts != self.restarts:
                return
            self.restarts += 1
            self.is_single_stream = self.is_single_stream or single_stream
            self._gaps = Gaps(self.item.size_bytes)
            self._ahead.clear()
            self._expected.clear()
            self._hash = self._new_hash()
            self._noted_at = 0
            self._journal.begin(self.item)
        self._changed()

    def finish(self, stored_checksum: Callable[[RemoteObject], str | None]) -> bool:
        """Compare and make durable; False if it has to be fetched again. Call it once all is hashed.

        Raises `ContentMismatch` the second time, and `LocalDiskError`.
        """
        digest, wanted = self._hash.digest, self.item.digest
        promised = stored_checksum(self.item) if self._hash.crc is not None else None
        found = self._hash.promised
        if (wanted and wanted != found) or (promised and promised != self._hash.crc):
            self._mismatches += 1
            if self._mismatches > 1:
                self.discard()
                raise ContentMismatch(
                    f"{self.item.uri} arrived whole twice and is not what was promised (it hashes to {found}, promised "
                    f"was {wanted or promised}); the origin, or something before it, changes the content"
                )
            self.restart(restarts=self.restarts, single_stream=False)
            return False
        self.verified = "manifest" if wanted else "store" if promised else "length"
        file = self._begin_use(self.restarts)
        try:
            with on_disk(self.path):
                file.sync(at="cache.transfer.sync")
        finally:
            self._end_use()
        with on_disk(self.path):
            self._journal.finished(self.item, digest)
        self.close()
        self.digest = digest
        return True

    def close(self) -> None:
        """No more writes from now on; waits for those under way."""
        with self._lock:
            self._is_closed = True
            while self._using:
                self._quiet.wait()
            if self._file is not None:
                self._file.close()

    def discard(self) -> None:
        """What came is worthless."""
        self.close()
        self._journal.begin(self.item)
        with suppress(OSError):
            files.remove(self.path, at="cache.transfer.discard")

    def _new_hash(self) -> ContentHash:
        item = self.item
        return ContentHash(size_bytes=item.size_bytes, promised=item.digest, with_crc=item.has_checksum)

    def _take_up(self) -> None:
        """Go on where an earlier fetch was killed, or begin."""
        known = self._journal.progress(self.item)
        size = self.path.stat().st_size if known is not None and self.path.exists() else None
        if known is not None and known.digest is not None and size == self.item.size_bytes:
            self.digest, self.verified = known.digest, "journal"
            self._gaps = Gaps(0)
            return
        with on_disk(self.path):
            if known is None or size != self.item.size_bytes:
                files.remove(self.path, at="cache.transfer.start_over")
                self._journal.begin(self.item)
            else:
                for start, end in known.done:
                    self._gaps.remove(start, end)
                self._ahead = self._gaps.covered()
                reach = self._ahead.get(0, 0)
                self._expected = {at: digest for at, digest in known.prefixes.items() if at <= reach}
            self._file = StagedFile(self.path, self.item.size_bytes, at="cache.transfer.create")

    def _can_catch_up(self) -> bool:
        return not self._is_hashing and self._hash.offset in self._ahead

    def _next_end(self) -> int | None:
        with self._lock:
            end = self._ahead.pop(self._hash.offset, None)
            # In one step with looking: whoever lands a piece later finds nobody at work, and says so.
            self._is_hashing = end is not None
            return end

    def _read_back(self, file: StagedFile, end: int, buffer: memoryview) -> None:
        while self._hash.offset < end:
            with on_disk(self.path):
                count = file.read_into(buffer[: end - self._hash.offset], self._hash.offset)
            self._feed(buffer[:count])

    def _feed(self, piece: memoryview) -> None:
        self._hash.feed(piece)
        if self._hash.offset - self._noted_at >= PREFIX_BYTES and self._hash.offset < self.item.size_bytes:
            self._noted_at = self._hash.offset
            self._journal.prefix(self.item, self._hash.offset, self._hash.digest)

    def _refetch(self, good: ContentHash, end: int) -> None:
        """What lies between two noted hashes is not what was noted: ask for these bytes again."""
        with self._lock:
            self._hash = good
            self._gaps.add(good.offset, end)

    def _begin_use(self, restarts: int) -> StagedFile:
        with self._lock:
            if self._is_closed or restarts != self.restarts or self._file is None:
                raise Superseded
            self._using += 1
            return self._file

    def _end_use(self) -> None:
        with self._lock:
            self._using -= 1
            self._quiet.notify_all()
