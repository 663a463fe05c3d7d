"""Processes that a command leaves running: known by pid, start time and boot id, recorded in the home.

`dsec down` and the next `dsec up` find them by these records; a pid that was given to another program since then is
never signalled.
"""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.processes import ProcessId
from dsec_blocks.model.clock import Clock

KILLED_SECONDS = 5.0
"""How long a killed process may take to disappear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """One process that was left running under a name, with its log."""

    name: str
    process: ProcessId
    log: Path


def start(home: Path, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Background:
    """Start `command` in a session of its own and record it as `name`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    _records(home).mkdir(parents=True, exist_ok=True)
    env = {**os.environ, **environment}
    pid, release = processes.spawn_held(command, env=env, output=log, at="up.background.spawn")
    started = Background(name=name, process=processes.identify(pid), log=log)
    record = {"name": name, "process": started.process.to_json(), "log": str(log)}
    files.write(_records(home) / f"{name}.json", json.dumps(record, indent=1).encode(), at="up.background.record")
    release()  # not before it is recorded: whatever runs is found again
    return started


def find(home: Path, name: str) -> Background | None:
    """The process recorded as `name`, if it still runs."""
    try:
        record = json.loads((_records(home) / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    found = Background(name=name, process=ProcessId.from_json(record["process"]), log=Path(record["log"]))
    return found if alive(found) else None


def alive(background: Background) -> bool:
    """Whether it runs. (One that this process started itself is reaped first.)"""
    processes.reap()
    return processes.is_alive(background.process)


def stop(background: Background, *, grace_seconds: float, clock: Clock) -> bool:
    """Ask it to end with SIGTERM, make it end with SIGKILL after the grace; whether it ended by itself."""
    processes.signal_process(background.process, signal.SIGTERM, at="down.background.terminate")
    if _ended_within(background, grace_seconds, clock):
        return True
    processes.signal_process(background.process, signal.SIGKILL, at="down.background.kill")
    _ended_within(background, KILLED_SECONDS, clock)
    return False


def forget(home: Path, name: str) -> None:
    """Drop the record of a process that has ended."""
    files.remove(_records(home) / f"{name}.json", at="down.background.forget")


def _ended_within(background: Background, seconds: float, clock: Clock) -> bool:
    deadline = clock.monotonic() + seconds
    while alive(background):
        if clock.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _records(home: Path) -> Path:
    return home / "run"
