"""The steps of `dsec down`: worker, gangs, then the Prefect server, and proof that nothing is left."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_deployments import background, installation
from dsec_deployments.installation import Installation

WORKER_SECONDS = 15.0
SERVER_SECONDS = 15.0
EVICT_SECONDS = 600.0

Tell = Callable[[str], None]


def bring_down(
    wanted: Installation, *, evict: bool, purge: bool, progress: Tell, note: Tell, clock: Clock | None = None
) -> int:
    """Stop every part; returns how many processes would not end."""
    clock = clock or SystemClock()
    home = installation.home()
    if not home.exists():
        note(f"nothing was ever started in {home}")
        return 0
    lock = processes.hold_lock(home / "up.lock", blocking=False, at="down.lock")
    if lock is None:
        raise DsecError(f"another `dsec up` or `dsec down` works in {home}; wait for it to end")
    try:
        if evict:
            _evict_all(wanted, home, progress=progress, note=note, clock=clock)
        _stop(home, "worker", WORKER_SECONDS, progress=progress, note=note, clock=clock)
        left = _stop_gangs(home, progress=progress, note=note, clock=clock)
        if wanted.owns_server:
            _stop(home, "prefect-server", SERVER_SECONDS, progress=progress, note=note, clock=clock)
        if purge:
            files.remove_tree(home, at="down.purge")
            note(f"deleted {home}")
        return left
    finally:
        os.close(lock)


def _evict_all(wanted: Installation, home: Path, *, progress: Tell, note: Tell, clock: Clock) -> None:
    """Ask the worker to drain and wait until every gang has checkpointed and left."""
    if background.find(home, "worker") is None:
        note("no worker runs: nobody can ask the gangs to checkpoint")
        return
    ledger = Ledger.open(wanted.resolved_ledger_url(), clock=clock)
    try:
        ledger.wish(wanted.pool, "drain", None, {"evict": True}, by="dsec down", why="dsec down --evict")
        deadline = clock.monotonic() + EVICT_SECONDS
        while gangs := ledger.gangs(wanted.pool, {*HOLDING_STATES, GangState.LEAVING}):
            if clock.monotonic() > deadline:
                note(f"{len(gangs)} gangs did not leave within {EVICT_SECONDS:.0f} s; they are stopped now")
                return
            progress(f"{len(gangs)} gangs checkpoint: {', '.join(gang.name for gang in gangs[:3])}")
            time.sleep(0.3)
        note("every gang has checkpointed and left")
    finally:
        ledger.close()


def _stop(home: Path, name: str, grace_seconds: float, *, progress: Tell, note: Tell, clock: Clock) -> None:
    running = background.find(home, name)
    if running is None:
        return
    progress(f"{name}: stopping")
    polite = background.stop(running, grace_seconds=grace_seconds, clock=clock)
    background.forget(home, name)
    note(f"{name}: stopped" + ("" if polite else f" by force after {grace_seconds:.0f} s"))


def _stop_gangs(home: Path, *, progress: Tell, note: Tell, clock: Clock) -> int:
    """Stop whatever gangs left, children that moved to another session included."""
    from dsec_workers.clusters.local import LocalCluster

    progress("gangs: stopping")
    left = asyncio.run(LocalCluster.shutdown(home))
    note("gangs: none is left")
    return left or 0
