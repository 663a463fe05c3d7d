"""The steps of `dsec up`: each looks first and acts only on what is missing, so running it twice changes nothing."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError, ServerUnreachable
from dsec_blocks.model.teams import Team
from dsec_deployments import agent_process, background, cluster_cache, installation, prefect_server, provisioning
from dsec_deployments.background import Background
from dsec_deployments.cli.worker import worker_command
from dsec_deployments.control_plane import simulated
from dsec_deployments.installation import DEFAULT_GPUS, DEFAULT_NODES, Installation
from dsec_deployments.prefect_api import PrefectApi, configured

WORKER_SECONDS = 60.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A pool that is up."""

    installation: Installation
    prefect_ui: str
    worker: Background


def bring_up(
    wanted: Installation, *, progress: Tell, note: Tell, clock: Clock | None = None, with_project: bool = True
) -> Started:
    """Start or find every part; `with_project` deploys ./prefect.yaml too.

    `progress` is told what is being waited for, `note` what has been reached.
    """
    clock = clock or SystemClock()
    home = installation.home()
    home.mkdir(parents=True, exist_ok=True)
    lock = processes.hold_lock(home / "up.lock", blocking=False, at="up.lock")
    if lock is None:
        raise DsecError(f"another `dsec up` or `dsec down` works in {home}; wait for it to end")
    try:
        if wanted.is_on_kubernetes:
            simulated.require(progress=progress)
        started = _bring_up(wanted, home, progress=progress, note=note, clock=clock)
        if with_project:
            _deploy(started.installation, clock, progress=progress, note=note)
        return started
    finally:
        os.close(lock)


def _bring_up(wanted: Installation, home: Path, *, progress: Tell, note: Tell, clock: Clock) -> Started:
    progress("ledger")
    ledger = Ledger.open(wanted.resolved_ledger_url(), clock=clock)
    try:
        ours = _declared(wanted)
        _refuse_another_kind_of_node(ours, home)
        if ours.is_on_kubernetes:
            # Whatever fails after this, `dsec down` knows that there is a cluster to stop.
            installation.save(installation.load().changed(kubernetes=ours.kubernetes))
            simulated.bring_up(ours, home, clock=clock, progress=progress, note=note)
        ours = _serve(ours, home, progress=progress, note=note, clock=clock)
        assert ours.prefect_api_url is not None
        installation.save(ours)
        api = PrefectApi(ours.prefect_api_url)
        progress("work pool")
        _pool(api, ours.pool, note=note)
        _teams(api, ledger, ours.pool, note=note)
        if ours.cluster_cache:
            limit = ours.cluster_cache_limit
            cluster_cache.bring_up(home, clock=clock, progress=progress, note=note, limit=limit)
        agent = agent_process.find(home)
        beginning = None if agent is not None else agent_process.begin(ours, home)
        worker = _work(ours, home, ledger, progress=progress, note=note, clock=clock)
        if beginning is not None:
            agent_process.wait(beginning, home, clock=clock, progress=progress, note=note)
        elif agent is not None:
            note(f"agent: runs (pid {agent.process.pid})")
        return Started(installation=ours, prefect_ui=api.ui_url, worker=worker)
    finally:
        ledger.close()


def _declared(wanted: Installation) -> Installation:
    """With no GPU on this machine and none declared, declare some: everything works without a GPU."""
    if wanted.nodes is not None or wanted.gpus is not None or wanted.is_on_kubernetes:
        return wanted.changed(
            nodes=wanted.nodes or DEFAULT_NODES, gpus=DEFAULT_GPUS if wanted.gpus is None else wanted.gpus
        )
    return wanted if Path("/dev/nvidiactl").exists() else wanted.changed(nodes=DEFAULT_NODES, gpus=DEFAULT_GPUS)


def _refuse_another_kind_of_node(wanted: Installation, home: Path) -> None:
    """A worker that runs has its gangs where it was told to: it cannot be told otherwise."""
    before = installation.load()
    if before.is_on_kubernetes == wanted.is_on_kubernetes or background.find(home, "worker") is None:
        return
    there = "in pods" if before.is_on_kubernetes else "as processes of this machine"
    raise DsecError(f"the worker of pool {before.pool} runs its gangs {there}; `dsec down` before that can change")


def _serve(wanted: Installation, home: Path, *, progress: Tell, note: Tell, clock: Clock) -> Installation:
    """The Prefect server to use: a configured one as it is, else our own."""
    ours = prefect_server.local_url(wanted.port)
    named = configured("PREFECT_API_URL")
    if named and named.rstrip("/") not in (ours, wanted.prefect_api_url if wanted.owns_server else ours):
        if not PrefectApi(named).answers():
            raise ServerUnreachable(
                f"no Prefect server answers at {named} (PREFECT_API_URL); start it, or unset the variable and "
                "`dsec up` starts one"
            )
        note(f"Prefect server: yours at {named}")
        return wanted.changed(prefect_api_url=named, owns_server=False)
    running = background.find(home, "prefect-server")
    if running is not None and wanted.prefect_api_url and PrefectApi(wanted.prefect_api_url).answers():
        if wanted.prefect_api_url != ours:
            raise DsecError(
                f"the Prefect server runs at {wanted.prefect_api_url} already; `dsec down` before another port"
            )
        note(f"Prefect server: runs at {ours}")
        return wanted
    if running is not None:
        progress("a Prefect server that does not answer: restarting it")
        background.stop(running, grace_seconds=10.0, clock=clock)
    prefect_server.start(home, port=wanted.port, clock=clock, progress=progress)
    note(f"Prefect server: started at {ours}")
    return wanted.changed(prefect_api_url=ours, owns_server=True)


def _pool(api: PrefectApi, pool: str, *, note: Tell) -> None:
    from dsec_workers.form import default_template, upgraded_template

    if provisioning.create_pool(api, pool=pool, template=default_template()):
        note(f"work pool {pool}: created")
        return
    present = provisioning.template_of(api, pool=pool)
    upgraded = upgraded_template(present)
    if upgraded != present:
        provisioning.upgrade_pool(api, pool=pool, template=upgraded)
        note(f"work pool {pool}: its form was brought up to date, your edits kept")
    else:
        note(f"work pool {pool}: is there")


def _teams(api: PrefectApi, ledger: Ledger, pool: str, *, note: Tell) -> None:
    teams: list[Team] = list(ledger.teams(pool).values())
    for team in teams:
        provisioning.create_queue(api, pool=pool, team=team)
    note(f"teams: {', '.join(sorted(team.name for team in teams))}")


def _work(ours: Installation, home: Path, ledger: Ledger, *, progress: Tell, note: Tell, clock: Clock) -> Background:
    running = background.find(home, "worker")
    if running is not None:
        note(f"worker: runs (pid {running.process.pid})")
        return running
    log = home / "logs" / "worker.log"
    worker = background.start(home, "worker", worker_command(ours.pool), environment=ours.worker_environment(), log=log)
    before = ledger.lease(ours.pool)
    began = clock.monotonic()
    while True:
        waited = clock.monotonic() - began
        lease = ledger.lease(ours.pool)
        if lease is not None and not lease.released and lease != before and ledger.nodes(ours.pool):
            break
        if not background.alive(worker):
            raise DsecError(f"the worker ended while starting; its last words are in {log}")
        if waited > WORKER_SECONDS:
            raise DsecError(f"the worker does not lead pool {ours.pool} after {waited:.0f} s; see {log}")
        progress(f"worker: starting, {waited:.0f} s")
        time.sleep(0.2)
    nodes = ledger.nodes(ours.pool)
    devices = sum(len(node.devices) for node in nodes)
    note(f"worker: started (pid {worker.process.pid}), {len(nodes)} nodes with {devices} devices")
    return worker


def _deploy(ours: Installation, clock: Clock, *, progress: Tell, note: Tell) -> None:
    project = Path("prefect.yaml")
    if not project.exists():
        return
    from dsec_deployments.deployment import deploy_project

    progress(f"deployments of {project}")
    ledger = Ledger.open(ours.resolved_ledger_url(), clock=clock)
    try:
        names = deploy_project(project, installation=ours, ledger=ledger, skip=note)
    finally:
        ledger.close()
    if names:
        note(f"deployments: {', '.join(names)}")


def stay(started: Started, show: Tell) -> None:
    """Show the worker's log until it ends or Ctrl-C, then stop it."""
    with started.worker.log.open() as log:
        try:
            while background.alive(started.worker):
                for line in log:
                    show(line.rstrip("\n"))
                time.sleep(0.3)
        except KeyboardInterrupt:
            background.stop(started.worker, grace_seconds=15.0, clock=SystemClock())
            background.forget(installation.home(), "worker")
            raise
