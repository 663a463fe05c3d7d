"""An API server that is slow, and workers that die on their way: gangs start and end whole, and the ledger is right."""

from typing import Any

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.kubernetes.api import Api
from tests.fixtures.slow_api import SlowApi
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import OpenSite, until
from tests.workers.clusters.kubernetes.test_cluster import jobs, pods, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def nothing_is_left_over(site: Site, api: Api, namespace: str, *runs: str) -> None:
    """The runs' gangs have ended without a restart, and neither the ledger nor the cluster has anything of them."""
    for run in runs:
        gang = site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS)
        assert (gang.infrastructure_restarts, gang.evictions) == (0, 0)
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(api, namespace)


async def test_a_gang_starts_and_ends_though_each_answer_is_late_and_the_watches_stall(
    open_site: OpenSite, slow_api: SlowApi, kubernetes_api: Api, namespace: str
) -> None:
    site = open_site()
    notes = site.home / "notes"
    deploy(site, "open_ended", nodes=2, devices_per_node=2, grace=120)
    deploy(site, "urgent", nodes=2, devices_per_node=2)
    slow_api.delay_seconds = 0.4
    site.start_worker(KUBECONFIG=slow_api.kubeconfig)
    parameters = {"store": str(site.home / "store"), "notes": str(notes), "name": "one"}
    run = site.submit("open_ended", parameters=parameters)
    path = notes / "steps-one"
    site.wait("its first steps", lambda: path.exists() and path.read_text().count("\n") > 3, seconds=PATIENCE_SECONDS)
    assert {len(gang_of(site, run)), len(await jobs(kubernetes_api, namespace))} == {2}
    slow_api.stall_watches()
    waits = site.submit("urgent", parameters={"notes": str(notes)})
    (notes / "stop-one").touch()
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    held = {holding.run_id for holding in site.ledger.holders(site.pool) if holding.turn == 0}
    assert held == {run}, "nobody has heard yet that its pods have ended"

    async def have_ended() -> bool:
        return {pod["status"]["phase"] for pod in await pods(kubernetes_api, namespace)} == {"Succeeded"}

    await until(have_ended)
    slow_api.resume_watches()
    site.wait_state(waits, "COMPLETED", seconds=PATIENCE_SECONDS)
    await nothing_is_left_over(site, kubernetes_api, namespace, run, waits)
    assert {method for method, _ in slow_api.requests} >= {"GET", "POST", "DELETE"}, "it did go through the door"


def gang_of(site: Site, run: str) -> tuple[Any, ...]:
    """Where the run's members are, as the ledger has it."""
    gang = site.gang(run)
    assert gang is not None and gang.placement is not None
    return gang.placement.members


@pytest.mark.parametrize(
    "fault",
    ["ledger.admit:kill_after", "kube.job.create:kill_before:2", "kube.job.create:kill_after:2",
     "ledger.launched:kill_before"],
)  # fmt: skip
async def test_a_worker_killed_between_reserve_and_bind_leaves_a_gang_that_its_successor_starts_once(
    open_site: OpenSite, kubernetes_api: Api, namespace: str, fault: str
) -> None:
    site = open_site()
    notes = site.home / "notes"
    notes.mkdir()
    deploy(site, "urgent", nodes=2, devices_per_node=2)
    killed = site.start_worker(DSEC_FAULT=fault)
    run = site.submit("urgent", parameters={"notes": str(notes)})
    site.wait("its worker to be killed", lambda: killed.poll() is not None, seconds=PATIENCE_SECONDS)
    gang = site.gang(run)
    assert gang is not None and gang.state in (GangState.RESERVED, GangState.LAUNCHING)
    assert {holding.run_id for holding in site.ledger.holders(site.pool)} == {run}
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    await nothing_is_left_over(site, kubernetes_api, namespace, run)
