"""The uploader's life: started by the first spooled snapshot, told when no more will come, waited for at the end."""

import signal
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.gateways import files, processes
from dsec_workers.clusters.local.loop import Loop

CLOSED = "closed"
"""The file in the spool that says: the gang has left, finish what is there and exit."""
ATTEMPTS = 5
_RETRY_SECONDS = 0.5


class Uploader:
    """The gang's uploader, restarted when it fails while snapshots are left."""

    def __init__(self, *, loop: Loop, spool: Path, start: Callable[[], int]) -> None:
        self._loop = loop
        self._spool = spool
        self._start = start
        self._pid: int | None = None
        self._failures = 0
        self._is_needed = False
        self._given_up = False
        self._on_end: Callable[[], None] | None = None

    @property
    def pids(self) -> set[int]:
        """The running uploader, if any."""
        return set() if self._pid is None else {self._pid}

    def begin(self) -> None:
        """There is something to upload."""
        self._is_needed = True
        self._again()

    def finish(self, on_end: Callable[[], None]) -> bool:
        """No more will be spooled: whether all is uploaded (or given up). `on_end` is called when that changes."""
        if self._on_end is None:
            self._on_end = on_end
            if self._spool.is_dir():
                self._close_spool()
                # A rank may have died between its snapshot and telling of it.
                self._is_needed = self._is_needed or any(entry.is_dir() for entry in self._spool.iterdir())
            if self._is_needed and self._pid is None:
                self.begin()  # it ended before it knew that it may
        return self._pid is None and (self._given_up or not self._is_needed)

    def ended(self, pid: int, status: int) -> bool:
        """Whether `pid` was the uploader; it is started again if it must be."""
        if pid != self._pid:
            return False
        self._pid = None
        if status == 0:
            self._is_needed = False
        elif status == 1 and self._on_end is not None:
            self._given_up = True  # it has tried for as long as it is worth
        elif not self._given_up:
            self._failures += 1
            self._given_up = self._failures >= ATTEMPTS
            if not self._given_up:
                self._loop.after(2.0 ** (self._failures - 1), self._again)
        return True

    def stop(self, grace_seconds: float) -> None:
        """Stop uploading: SIGTERM, then SIGKILL after the grace."""
        self._given_up = True
        self._send(signal.SIGTERM)
        self._loop.after(grace_seconds, lambda: self._send(signal.SIGKILL))
        if self._on_end is not None:
            self._loop.soon(self._on_end)

    def _close_spool(self) -> None:
        try:
            files.write(self._spool / CLOSED, b"", at="supervisor.spool.close")
        except OSError as error:  # the uploader stays until it reads this: a full disk must not cost the snapshot
            print(f"the spool could not be closed, trying again: {error}", flush=True)
            self._loop.after(_RETRY_SECONDS, self._close_spool)

    def _again(self) -> None:
        if self._pid is not None or self._given_up:
            return
        try:
            self._pid = self._start()
        except OSError as error:  # no room for a process: the snapshot is in the spool and can wait
            print(f"the uploader could not be started, trying again: {error}", flush=True)
            self._loop.after(_RETRY_SECONDS, self._again)

    def _send(self, signum: int) -> None:
        if self._pid is not None:
            processes.signal_group(self._pid, signum, at="supervisor.uploader.signal")
