"""What the disk is charged with: resident + reserved + in flight + trash.

There is no counter that could drift: usage is read from the disk. Things only ever move one way (asked for, reserved,
blob, view being built, view, trash), and the scan walks the same way, so whatever moves during the scan is seen at
least once and never missed. What a dead fetch left moves to whoever asks to go on with it: all staging directories
with a mark, the dead ones' first, are scanned before those without. An inode is counted once however many names it has.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.cache.store.marks import Mark, Sight, marks_in
from dsec_blocks.cache.transfer.journal import NAME as JOURNAL

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes, by what they are."""

    resident_bytes: int = 0
    """Blobs and views, each inode once."""
    reserved_bytes: int = 0
    """Granted and not yet written."""
    in_flight_bytes: int = 0
    """Written for a reservation and not yet published."""
    trash_bytes: int = 0
    asked_bytes: int = 0
    """Wanted by somebody who has not been granted it: counts against the next asker, not as used."""
    asks: tuple[Mark, ...] = ()
    reservations: tuple[Mark, ...] = ()
    files: int = 0
    """Resident files, each inode once."""

    @property
    def used_bytes(self) -> int:
        """What must never exceed the limit."""
        return self.resident_bytes + self.reserved_bytes + self.in_flight_bytes + self.trash_bytes

    @property
    def unwritten_bytes(self) -> int:
        """What the file system does not know of yet."""
        return self.reserved_bytes + self.asked_bytes


@dataclass(slots=True)
class _Inodes:
    """Inodes met so far."""

    seen: set[Inode] = field(default_factory=set)

    def new_bytes(self, found: os.stat_result) -> int:
        """The file's bytes if it was not met before."""
        inode = (found.st_dev, found.st_ino)
        if inode in self.seen:
            return 0
        self.seen.add(inode)
        return found.st_size


def usage(layout: Layout, sight: Sight) -> Usage:
    """Scan the cache."""
    asks = list(marks_in(layout.asks))
    granted = list(marks_in(layout.reservations))
    moved = {mark.id for _, mark in granted}
    asks = [(path, mark) for path, mark in asks if mark.id not in moved]
    left = {mark.id for path, mark in asks if is_left(mark, path, sight)}
    inodes = _Inodes()
    reserved = in_flight = asked = 0
    for path, mark in granted:
        # What is written is in these files; once they are blobs as well, they still belong to the reservation.
        written = sum(inodes.new_bytes(found) for found in _data_of(layout.staging / mark.id / "data"))
        in_flight += written
        if not is_left(mark, path, sight):
            reserved += max(0, int(mark.fields.get("bytes", 0)) - written)
    for mark in sorted((mark for _, mark in asks), key=lambda mark: mark.id not in left):
        # Who asks has data already when it goes on with what a dead fetch left: moved here before it asks for room.
        written = sum(inodes.new_bytes(found) for found in _data_of(layout.staging / mark.id / "data"))
        in_flight += written
        if mark.id not in left:
            asked += max(0, int(mark.fields.get("bytes", 0)) - written)
    before = len(inodes.seen)
    resident = 0
    for part in names(layout.blobs):
        resident += sum(inodes.new_bytes(found) for found in _files_below(layout.blobs / part))
    for name in names(layout.staging):
        # Without a mark any more: a copy of what turned out to be a blob already.
        resident += sum(inodes.new_bytes(found) for found in _data_of(layout.staging / name / "data"))
        resident += sum(inodes.new_bytes(found) for found in _files_below(layout.staging / name / "view" / "files"))
    for bundle in names(layout.views):
        for nonce in names(layout.views / bundle):
            resident += sum(inodes.new_bytes(found) for found in _files_below(layout.views / bundle / nonce / "files"))
    files = len(inodes.seen) - before
    trash = sum(inodes.new_bytes(found) for found in _trash_of(layout))
    return Usage(
        resident_bytes=resident,
        reserved_bytes=reserved,
        in_flight_bytes=in_flight,
        trash_bytes=trash,
        asked_bytes=asked,
        asks=tuple(mark for _, mark in asks if mark.id not in left),
        reservations=tuple(mark for _, mark in granted),
        files=files,
    )


def is_left(mark: Mark, path: Path, sight: Sight) -> bool:
    """Whether nobody writes for this reservation any more: given up, or its owner is dead."""
    return bool(mark.fields.get("abandoned")) or sight.is_surely_dead(mark, path)


def written_bytes(layout: Layout, reservation: str) -> int:
    """The room that what is staged for a reservation takes: a file has its whole length from the beginning."""
    return sum(found.st_size for found in _data_of(layout.staging / reservation / "data"))


def last_write(layout: Layout, reservation: str) -> tuple[int, int]:
    """Another pair each time that something more was staged: how many files, and the newest write in nanoseconds."""
    times = [found.st_mtime_ns for found in _data_of(layout.staging / reservation / "data")]
    return len(times), max(times, default=0)


def _data_of(data: Path) -> Iterator[os.stat_result]:
    """The staged files; the transfer's journal beside them is no data."""
    for name in names(data):
        with suppress(FileNotFoundError):
            if name != JOURNAL:
                yield (data / name).stat()


def _trash_of(layout: Layout) -> Iterator[os.stat_result]:
    """Blobs, and the data in views and staging directories on their way out (not their manifests and journals)."""
    for name in names(layout.trash):
        path = layout.trash / name
        yield from _files_below(path / "files")
        yield from _files_below(path / "view" / "files")
        yield from _data_of(path / "data")
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat()


def _files_below(directory: Path) -> Iterator[os.stat_result]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        yield from _files_below(Path(entry.path))
                    else:
                        yield entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, NotADirectoryError):
        return
