"""Images that take their time, and images that cannot be had: the first is no failure of a start, the second is one."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.following import PARTIAL_SECONDS
from dsec_workers.clusters.protocol import GangKey, Gone, Preparing, Started
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.workers.clusters.kubernetes.conftest import Ahead, OpenCluster, OpenSite, Told, order_on, until
from tests.workers.clusters.kubernetes.test_cluster import pods, pods_of, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy
from tests.workers.clusters.kubernetes.test_in_pods import flow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
START_SECONDS = 60.0


async def until_pulled_at(told: Told, key: GangKey, node: str) -> None:
    """Until the worker has seen that the node pulls and the others of the gang run."""
    view = told.cluster._roster.views[key]

    def is_seen() -> bool:
        fates = view.fates().values()
        return len(fates) == view.count and all(f.preparing if f.node == node else f.is_running for f in fates)

    await until(is_seen)


async def test_a_pull_that_takes_longer_than_a_start_may_fails_nothing(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    process_nodes.hold_images(two_nodes[1], quietly=True)
    clock = Ahead()
    told = await open_cluster(two_nodes, clock=clock)
    order = flow(order_on(two_nodes, start_timeout_seconds=START_SECONDS), tmp_path, "print('here', flush=True)")
    await told.cluster.launch(order)
    await until_pulled_at(told, order.key, two_nodes[1])
    clock.seconds = 10 * START_SECONDS
    said = await until(lambda: [e.why for e in told.events.get(order.key, ()) if isinstance(e, Preparing)])
    assert re.fullmatch(rf"node {two_nodes[1]} is pulling the image \(\d+ (s|min) so far\)", said[-1])
    view = told.cluster._roster.views[order.key]
    assert clock.now() - view.created_at > 2 * START_SECONDS and view.failure is None
    process_nodes.release_images(two_nodes[1])
    await told.until(order.key, Started)
    gone = await told.until(order.key, Gone)
    assert (gone.flow_exit, gone.start_failure) == (0, None)
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_pull_that_never_ends_fails_the_start_whole_and_says_what_it_waited_for(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    process_nodes.hold_images(two_nodes[1], quietly=True)
    clock = Ahead()
    told = await open_cluster(two_nodes, clock=clock, pull_seconds=600.0)
    order = flow(order_on(two_nodes, start_timeout_seconds=START_SECONDS), tmp_path, "print('never', flush=True)")
    await told.cluster.launch(order)
    await until_pulled_at(told, order.key, two_nodes[1])
    clock.seconds = 600.0 + 2 * START_SECONDS
    gone = await told.until(order.key, Gone)
    why = f"member 1 on {two_nodes[1]} is not running after 60 s: its node is pulling the image"
    assert re.fullmatch(rf"{why} \(\d+ min so far\)", gone.start_failure)
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_an_image_that_cannot_be_pulled_fails_the_start_in_the_ordinary_time_and_nothing_stays_partly_running(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    process_nodes.hold_images(two_nodes[1])
    allowed = 5.0
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes, start_timeout_seconds=allowed), tmp_path, "print('never', flush=True)")
    await told.cluster.launch(order)
    first, _ = await pods_of(kubernetes_api, namespace, 2)
    seen: list[dict[str, Any]] = []

    async def has_gone() -> bool:
        there = await pods(kubernetes_api, namespace)
        seen.extend(pod for pod in there if pod["metadata"]["uid"] == first["metadata"]["uid"])
        return "Gone" in told.kinds(order.key)

    await until(has_gone)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure is not None
    assert gone.start_failure.startswith(f"member 1 on {two_nodes[1]} is not running after 5 s: ")
    assert "ErrImagePull" in gone.start_failure or "ImagePullBackOff" in gone.start_failure
    assert "Started" not in told.kinds(order.key)
    partly = [span for pod in seen if (span := ran_for(pod)) is not None]
    assert not partly or partly[-1] <= allowed + PARTIAL_SECONDS, "a part of the gang ran on by itself"
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


def ran_for(pod: dict[str, Any]) -> float | None:
    """How long the gang's container of a pod ran, by its kubelet's own times; None while it does, or never did."""
    for status in pod["status"].get("containerStatuses") or ():
        ended = status["state"].get("terminated")
        if ended is not None and ended.get("startedAt"):
            times = [datetime.fromisoformat(ended[name]).timestamp() for name in ("startedAt", "finishedAt")]
            return times[1] - times[0]
    return None


async def test_a_run_whose_image_is_slow_keeps_its_reservation_and_says_what_it_waits_for(
    open_site: OpenSite, process_nodes: ProcessNodes, kubernetes_api: Api, namespace: str
) -> None:
    site = open_site(1)
    notes = site.home / "notes"
    notes.mkdir()
    deploy(site, "urgent", nodes=1, devices_per_node=2)
    process_nodes.hold_images(f"{namespace}-a", quietly=True)
    site.start_worker(DSEC_RESERVATION="19s")  # a pull is told of after 20 s, so its reservation is over by then
    run = site.submit("urgent", parameters={"notes": str(notes)})
    words = f"node {namespace}-a is pulling the image"

    def told() -> list[str]:
        decisions = site.ledger.decisions(site.pool, run_id=run)
        return [each.why for each in decisions if (each.stage, each.outcome) == ("start", "waits")]

    site.wait("what its start waits for", told, seconds=PATIENCE_SECONDS)
    assert told()[0].startswith(words)
    site.wait("the same on its page", lambda: any(words in line for line in site.logs(run)), seconds=PATIENCE_SECONDS)
    gang = site.gang(run)
    assert gang is not None and (gang.state, gang.attempt) == (GangState.LAUNCHING, 1)
    assert {holding.run_id for holding in site.ledger.holders(site.pool)} == {run}
    process_nodes.release_images(f"{namespace}-a")
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    gang = site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert (gang.attempt, gang.infrastructure_restarts) == (1, 0)
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)
