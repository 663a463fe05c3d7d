"""What the machine shows of a world: its processes, which of them are stopped, and who holds which device lock."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.ledger import Ledger
from dsec_workers.clusters.protocol import GangKey

SAMPLE_SECONDS = 0.15
PATIENCE_SECONDS = 3.0
"""How long a device's lock may outlive its ledger row: a stop is asked for before the row goes, and takes a moment."""


def processes_of(home: Path) -> list[int]:
    """Every process with its output, working directory or an open file below `home`, zombies left out.

    `DSEC_RUN_ID` in `/proc/PID/environ` would miss the forked: it shows what a process was executed with.
    """
    others = [row.pid for row in processes.processes() if not row.is_zombie and row.pid != os.getpid()]
    return [pid for pid in others if is_below(home, pid)]


def carrying(run_ids: set[str]) -> list[int]:
    """Processes executed with one of these runs' ids in their environment."""
    return [
        row.pid
        for row in processes.processes()
        if not row.is_zombie and processes.environment(row.pid).get("DSEC_RUN_ID") in run_ids
    ]


def stopped(pids: list[int]) -> list[int]:
    """Those that SIGSTOP has stopped."""
    found = []
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text()
            if text[text.rindex(")") + 2] == "T":
                found.append(pid)
    return found


def all_stopped() -> list[int]:
    """Whatever SIGSTOP has stopped on this machine."""
    return stopped([int(entry) for entry in os.listdir("/proc") if entry.isdigit()])


def is_below(home: Path, pid: int) -> bool:
    """Whether a process has its output, working directory or an open file below `home`."""
    inside = f"{home}{os.sep}"
    return any(path.startswith(inside) for path in (_cwd(pid), *processes.open_files(pid).values()))


def describe(pid: int) -> str:
    """A process in a few words: where its output goes tells what it is."""
    return f"{pid} → {processes.open_files(pid).get(1, '?')}"


def lock_holders(devices: Path) -> Iterator[tuple[str, GangKey]]:
    """Each device whose lock is held, with the gang whose process took it."""
    inodes = {}
    with suppress(FileNotFoundError):
        for path in devices.iterdir():
            inodes[path.stat().st_ino] = path.name.removesuffix(".lock")
    for line in Path("/proc/locks").read_text().splitlines():
        if "->" in line:  # it waits
            continue
        match = re.search(r"FLOCK\s+\S+\s+\S+\s+(\d+)\s+\S+:(\d+)\s", line)
        if match is None or int(match[2]) not in inodes:
            continue
        gang = Path(processes.open_files(int(match[1])).get(1, "")).parent.name
        run_id, _, attempt = gang.rpartition("-")
        if attempt.isdigit():
            yield inodes[int(match[2])], GangKey(run_id, int(attempt))


@dataclass
class DeviceWatch:
    """Samples ledger and locks for as long as a world lives: a lock belongs to a gang with a row on the device."""

    ledger: Ledger
    pool: str
    devices: Path
    violations: list[str] = field(default_factory=list)
    samples: int = 0
    _since: dict[tuple[str, GangKey], float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name=f"devices of {self.pool}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            with suppress(Exception):  # the ledger may be locked, or struck, just now
                self._sample()

    def _sample(self) -> None:
        before = self._rows()
        locked = set(lock_holders(self.devices))
        rows = before | self._rows()
        self.samples += 1
        now = time.monotonic()
        strange = {(device, key) for device, key in locked if (device, key) not in rows}
        self._since = {held: self._since.get(held, now) for held in strange}
        for held, since in self._since.items():
            if now - since > PATIENCE_SECONDS:
                text = f"{held[0]} is locked by {held[1]}, which has no reservation on it"
                if text not in self.violations:
                    self.violations.append(text)

    def _rows(self) -> set[tuple[str, GangKey]]:
        holdings = self.ledger.holders(self.pool)
        first = [(h.device, h.turn) for h in holdings]
        for twice in {row for row in first if first.count(row) > 1}:
            self.violations.append(f"{twice} is held twice in the ledger")
        return {(h.device, GangKey(h.run_id, h.attempt)) for h in holdings}


def resume(pid: int) -> None:
    """SIGCONT."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""
