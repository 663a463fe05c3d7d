"""The agent that `dsec up` leaves running: started beside the worker, found again, stopped by `dsec down`.

A pool works without it, only colder; so one that does not start is told and stops nothing.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.model.clock import Clock
from dsec_deployments import background
from dsec_deployments.background import Background
from dsec_deployments.installation import Installation
from dsec_workers.node_agent.access import living_address

NAME = "agent"
START_SECONDS = 60.0
Tell = Callable[[str], None]


def find(home: Path) -> Background | None:
    """The agent of this home, whoever started it."""
    recorded = background.find(home, NAME)
    if recorded is not None:
        return recorded
    address = living_address(home / "agent")
    return None if address is None else Background(name=NAME, process=address.process, log=_log(home))


def begin(installation: Installation, home: Path) -> Background:
    """Start one; it needs a second or two until it answers."""
    command = [sys.executable, "-m", "dsec_deployments.cli", "agent"]
    return background.start(home, NAME, command, environment=installation.worker_environment(), log=_log(home))


def wait(started: Background, home: Path, *, clock: Clock, progress: Tell, note: Tell) -> None:
    """Wait until it listens, or say that it does not."""
    began = clock.monotonic()
    while True:
        address = living_address(home / "agent")
        if address is not None and address.process == started.process:
            note(f"agent: started (pid {started.process.pid}) at {address.url}")
            return
        waited = clock.monotonic() - began
        if not background.alive(started) or waited > START_SECONDS:
            note(f"agent: did not start; runs fetch for themselves meanwhile. Its last words: {_last_words(started)}")
            return
        progress(f"agent: starting, {waited:.0f} s")
        time.sleep(0.1)


def _last_words(started: Background) -> str:
    try:
        lines = started.log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"none, see {started.log}"


def _log(home: Path) -> Path:
    return home / "logs" / "agent.log"
