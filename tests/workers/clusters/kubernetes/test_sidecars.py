"""Containers beside the gang's: they may be there, and they keep no card once the gang has ended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import Gone, LaunchOrder, Started
from tests.workers.clusters.kubernetes.conftest import OpenCluster, order_on
from tests.workers.clusters.kubernetes.test_cluster import until_nothing_is_left
from tests.workers.clusters.kubernetes.test_in_pods import flow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NEVER_ENDS = {"name": "proxy", "image": "none", "command": ["sh", "-c", "while :; do sleep 1; done"]}
"""As PID 1 without a handler it does not even hear SIGTERM."""
ENDS_WHEN_TOLD = {**NEVER_ENDS, "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]}


def beside(order: LaunchOrder, sidecar: dict[str, Any]) -> LaunchOrder:
    """A gang whose pool's template has a second, ordinary container."""
    return replace(order, job_manifest={"spec": {"template": {"spec": {"containers": [{"name": "gang"}, sidecar]}}}})


@pytest.mark.parametrize("sidecar", [ENDS_WHEN_TOLD, NEVER_ENDS], ids=["ends when told", "has to be killed"])
async def test_a_container_that_runs_on_after_its_gang_does_not_hold_the_gangs_cards_for_ever(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path,
    sidecar: dict[str, Any],
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = beside(flow(order_on(two_nodes, gpus=2), tmp_path, "sys.exit(3)"), sidecar)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    gone = await told.until(order.key, Gone)
    assert (gone.flow_exit, gone.notice, gone.start_failure, gone.lost_member) == (3, None, None, None)
    assert told.kinds(order.key) == ["Started", "DevicesReleased", "Gone"]
    again = flow(order_on(two_nodes, gpus=2), tmp_path, "print('room', flush=True)")
    await told.cluster.launch(again)
    assert (await told.until(again.key, Gone)).flow_exit == 0
    for key in (order.key, again.key):
        await told.cluster.forget(key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_gang_that_is_stopped_takes_its_sidecars_along(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    told = await open_cluster(two_nodes)
    program = "run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    order = beside(flow(order_on(two_nodes[:1]), tmp_path, program), ENDS_WHEN_TOLD)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    await told.cluster.stop(order.key, 0.0)
    await told.until(order.key, Gone)
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)
