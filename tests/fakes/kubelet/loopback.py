"""Addresses of pods and nodes: each has one of its own in 127.0.0.0/8, so that all can listen on the same port.

A stand-in claims 127.B.0.0/16 by a lock on a file, so that two on one machine never give out the same address.
"""

import fcntl
import os
import tempfile
from pathlib import Path

LOWEST, HIGHEST = 64, 250
_HOSTS = 250


class Addresses:
    """One block of addresses, ours until this process ends. None is given twice before all have been."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"dsec-loopback-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._lock, self._block = _claim(folder)
        self._nodes = 0
        self._pods = 0

    def for_node(self) -> str:
        """An address in 127.B.0.0/24."""
        self._nodes += 1
        return f"127.{self._block}.0.{1 + (self._nodes - 1) % _HOSTS}"

    def for_pod(self) -> str:
        """An address in the rest of the block."""
        third, fourth = divmod(self._pods % (_HOSTS * _HOSTS), _HOSTS)
        self._pods += 1
        return f"127.{self._block}.{1 + third}.{1 + fourth}"


def _claim(folder: Path) -> tuple[int, int]:
    for block in range(LOWEST, HIGHEST):
        lock = os.open(folder / str(block), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return lock, block
    raise RuntimeError(f"all loopback blocks are in use; see {folder}")
