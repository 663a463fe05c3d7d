"""The file-system gateway for a file that is written in many places at once, before anybody may read it.

`files.write` is for contents that exist already; a large file that arrives over many connections is preallocated (so
that a full disk is known at once), written by offset, and fsynced once. Writing back starts right after each write:
left to itself the kernel collects gigabytes, then stops every writer until the disk has caught up.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from dsec_blocks.gateways.faults import fault_point
from dsec_blocks.gateways.files import sync_directory

_SYNC_FILE_RANGE_WRITE = 2


def _kernel_call() -> Callable[[int, int, int], None]:
    """`sync_file_range(WRITE)`, which starts writing back and waits for nothing; nothing where the system has none."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return lambda descriptor, offset, length: None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return lambda descriptor, offset, length: cast(None, call(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE))


_start_writing_back = _kernel_call()


class StagedFile:
    """One preallocated file, open for reading and writing by offset. Safe to share between threads."""

    def __init__(self, path: Path, size_bytes: int, *, at: str) -> None:
        """Create `path` with room for all of it, or open the one that is there. Raises `OSError` (a full disk too)."""
        self.path = path
        self.size_bytes = size_bytes
        # Writers of one file exclude each other in the kernel, where those that wait may spin; here they sleep.
        self._writing = threading.Lock()
        with fault_point(at):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(self._descriptor).st_size > size_bytes:
                    os.ftruncate(self._descriptor, size_bytes)
                if size_bytes:
                    os.posix_fallocate(self._descriptor, 0, size_bytes)
            except BaseException:
                os.close(self._descriptor)
                raise

    def write(self, piece: memoryview, offset: int, *, at: str) -> None:
        """Write one piece whole and let the disk begin with it."""
        with fault_point(at):
            with self._writing:
                rest, position = piece, offset
                while rest:
                    written = os.pwrite(self._descriptor, rest, position)
                    rest, position = rest[written:], position + written
            _start_writing_back(self._descriptor, offset, len(piece))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; returns the number of bytes."""
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self._descriptor, [buffer[filled:]], offset + filled)
            if not count:
                break
            filled += count
        return filled

    def sync(self, *, at: str) -> None:
        """Make content and name durable."""
        with fault_point(at):
            os.fsync(self._descriptor)
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Give the descriptor back; harmless the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class AppendedLog:
    """A log kept open, one line a write: it survives the death of the process, not of the machine."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, line: bytes, *, at: str) -> None:
        """Add one line, in one write."""
        with fault_point(at):
            os.write(self._descriptor, line)

    def close(self) -> None:
        """Give the descriptor back; harmless the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
