"""The steps of `dsec down`: worker, gangs or their cluster, the agent, then the Prefect server; nothing is left."""

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
from dsec_deployments import agent_process, background, cluster_cache, installation
from dsec_deployments.control_plane import simulated
from dsec_deployments.installation import Installation

WORKER_SECONDS = 15.0
SERVER_SECONDS = 15.0
AGENT_SECONDS = 10.0
STORE_SECONDS = 3.0
"""A clean end takes it half a minute; what it holds is a cache, and verified by whoever reads it."""
EVICT_SECONDS = 600.0
LEADER_SECONDS = 3.0
"""A leader says each second that it lives; one that has not said so for this long is taken for dead."""

Tell = Callable[[str], None]


def bring_down(
    wanted: Installation, *, evict: bool, purge: bool, progress: Tell, note: Tell, clock: Clock | None = None
) -> None:
    """Stop every part that runs on this machine; what is not running is fine."""
    clock = clock or SystemClock()
    home = installation.home()
    if not home.exists():
        note(f"nothing was ever started in {home}")
        return
    lock = processes.hold_lock(home / "up.lock", blocking=False, at="down.lock")
    if lock is None:
        raise DsecError(f"another `dsec up` or `dsec down` works in {home}; wait for it to end")
    try:
        if evict:
            _evict_all(wanted, home, progress=progress, note=note, clock=clock)
        _stop(home, "worker", WORKER_SECONDS, progress=progress, note=note, clock=clock)
        if wanted.is_on_kubernetes:
            simulated.bring_down(home, clock=clock, progress=progress, note=note)
        else:
            _stop_gangs(home, evict=evict, progress=progress, note=note, clock=clock)
        _stop(home, agent_process.NAME, AGENT_SECONDS, progress=progress, note=note, clock=clock)
        if wanted.cluster_cache:
            _stop(home, cluster_cache.NAME, STORE_SECONDS, progress=progress, note=note, clock=clock)
            cluster_cache.forget(home)
        if wanted.owns_server:
            _stop(home, "prefect-server", SERVER_SECONDS, progress=progress, note=note, clock=clock)
        if purge:
            files.remove_tree(home, at="down.purge")
            note(f"deleted {home}")
    finally:
        os.close(lock)


def _evict_all(wanted: Installation, home: Path, *, progress: Tell, note: Tell, clock: Clock) -> None:
    """Have the worker drain every node and wait until every gang has checkpointed and left."""
    worker = background.find(home, "worker")
    if worker is None:
        _refuse_while_another_leads(wanted, clock=clock)
        directly = "they are stopped" if wanted.is_on_kubernetes else "they are asked directly"
        note(f"no worker runs here that could ask the gangs to checkpoint; {directly}")
        return
    ledger = Ledger.open(wanted.resolved_ledger_url(), clock=clock)
    try:
        nodes = [node.name for node in ledger.nodes(wanted.pool)]
        _drain(ledger, wanted.pool, nodes, undo=False)
        deadline = clock.monotonic() + EVICT_SECONDS
        while gangs := ledger.gangs(wanted.pool, {*HOLDING_STATES, GangState.LEAVING}):
            if clock.monotonic() > deadline or not background.alive(worker):
                note(f"{len(gangs)} gangs did not leave in time; they are stopped now")
                break
            progress(f"{len(gangs)} gangs checkpoint: {', '.join(gang.name for gang in gangs[:3])}")
            time.sleep(0.2)
        else:
            note("every gang has checkpointed and is back in the line")
        # The worker must not start them again before it stops, and the next one must find the nodes open.
        _stop(home, "worker", WORKER_SECONDS, progress=progress, note=note, clock=clock)
        _drain(ledger, wanted.pool, nodes, undo=True)
    finally:
        ledger.close()


def _refuse_while_another_leads(wanted: Installation, *, clock: Clock) -> None:
    """A worker that this command cannot stop would start again whatever is told to leave."""
    ledger = Ledger.open(wanted.resolved_ledger_url(), clock=clock)
    try:
        seen, deadline = ledger.lease(wanted.pool), clock.monotonic() + LEADER_SECONDS
        if seen is None or seen.released:
            return
        while clock.monotonic() < deadline:
            time.sleep(0.1)
            lease = ledger.lease(wanted.pool)
            if lease is not None and not lease.released and lease != seen:
                raise DsecError(
                    f"pool {wanted.pool} is led by {lease.holder}, which `dsec up` did not start, so nothing was done: "
                    f"stop that worker where it runs (`systemctl stop dsec-worker@{wanted.pool}`; one that runs with "
                    "`dsec worker --evict` has its gangs checkpoint first)"
                )
    finally:
        ledger.close()


def _drain(ledger: Ledger, pool: str, nodes: list[str], *, undo: bool) -> None:
    for node in nodes:
        args = {"node": node, "undo": True} if undo else {"node": node}
        ledger.wish(pool, "drain", None, args, by="dsec down", why="dsec down --evict")


def _stop(home: Path, name: str, grace_seconds: float, *, progress: Tell, note: Tell, clock: Clock) -> None:
    running = agent_process.find(home) if name == agent_process.NAME else background.find(home, name)
    if running is None:
        return
    progress(f"{name}: stopping")
    polite = background.stop(running, grace_seconds=grace_seconds, clock=clock)
    background.forget(home, name)
    note(f"{name}: stopped" + ("" if polite else f" by force after {grace_seconds:.0f} s"))


def _stop_gangs(home: Path, *, evict: bool, progress: Tell, note: Tell, clock: Clock) -> None:
    """Stop whatever gangs left, children that moved to another session included."""
    from dsec_workers.clusters.local import LocalCluster

    progress("gangs: stopping")
    stopped = asyncio.run(LocalCluster(home=home, nodes=(), clock=clock).shutdown(evict=evict))
    note(f"gangs: {stopped} stopped" if stopped else "gangs: none ran")
