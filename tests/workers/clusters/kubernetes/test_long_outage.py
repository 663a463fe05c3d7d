"""An API server that is away for long: gangs train on, what ends meanwhile is heard of later, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import GangState
from dsec_deployments.control_plane import plane
from dsec_workers.clusters.kubernetes.api import Api
from tests.workers.clusters.kubernetes.conftest import OpenSite
from tests.workers.clusters.kubernetes.test_cluster import until_nothing_is_left
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LOOK_SECONDS = 2.0


@pytest.mark.parametrize("seconds", [30.0, pytest.param(600.0, marks=pytest.mark.long)])
async def test_while_the_api_server_is_away_gangs_train_on_and_afterwards_the_ledger_is_the_cluster(
    open_site: OpenSite,
    kubernetes_home: Path,
    kubernetes_api: Api,
    namespace: str,
    seconds: float,
) -> None:
    site = open_site()
    notes, clock = site.home / "notes", SystemClock()
    deploy(site, "open_ended", nodes=1, devices_per_node=2, grace=120)
    deploy(site, "urgent", nodes=2, devices_per_node=2)
    site.start_worker()

    def steps(name: str) -> list[int]:
        path = notes / f"steps-{name}"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    parameters = {"store": str(site.home / "store"), "notes": str(notes)}
    runs = {name: site.submit("open_ended", parameters={**parameters, "name": name}) for name in ("stays", "ends")}
    for name in runs:
        site.wait(f"the first steps of {name}", lambda name=name: len(steps(name)) > 3, seconds=PATIENCE_SECONDS)
    waits = site.submit("urgent", parameters={"notes": str(notes)})
    site.wait("its reason", lambda: (gang := site.gang(waits)) and gang.reason_code, seconds=PATIENCE_SECONDS)
    await asyncio.to_thread(plane.stop_part, kubernetes_home, "kube-apiserver", clock=clock)
    try:
        began = clock.monotonic()
        (notes / "stop-ends").touch()
        site.wait_state(runs["ends"], "COMPLETED", seconds=PATIENCE_SECONDS)
        while clock.monotonic() - began < seconds:
            before = len(steps("stays"))
            site.wait("more steps", lambda before=before: len(steps("stays")) > before, seconds=PATIENCE_SECONDS)
            held = {holding.run_id for holding in site.ledger.holders(site.pool) if holding.turn == 0}
            assert held == set(runs.values()), "nobody can know that the pod of the other has ended"
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await asyncio.to_thread(plane.start, kubernetes_home, clock=clock)
    ended = site.wait_gang(runs["ends"], GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert (ended.attempt, ended.infrastructure_restarts) == (1, 0)
    before = len(steps("stays"))
    site.wait("steps after the outage", lambda: len(steps("stays")) > before + 5, seconds=PATIENCE_SECONDS)
    (notes / "stop-stays").touch()
    for run in (runs["stays"], waits):
        site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
        gang = site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS)
        assert (gang.infrastructure_restarts, gang.evictions) == (0, 0)
        # An admission onto a node that still counts as unreachable is undone before anything of it starts.
        outcomes = [decision.outcome for decision in site.ledger.decisions(site.pool, run_id=run)]
        assert outcomes.count("launched") == 1
    for name in runs:
        assert steps(name) == list(range(len(steps(name)))), "no step was lost or done twice"
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)
