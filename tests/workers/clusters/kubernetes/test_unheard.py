"""Pods that run and cannot be reached, as where a network policy shuts them off: the failure says who and where."""

from pathlib import Path
from typing import Any

import pytest

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import Gone, LaunchOrder
from tests.fixtures.ports import free_port
from tests.workers.clusters.kubernetes.conftest import AT, Ahead, MakeNodes, OpenCluster, Told, order_on, until
from tests.workers.clusters.kubernetes.test_cluster import pods, pods_of, set_status, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_in_pods import flow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
START_SECONDS = 60.0
NOBODY = "127.255.7.7"
"""An address on which nobody listens."""


async def failure(told: Told, api: Api, namespace: str, order: LaunchOrder, by_hand: str) -> str:
    """Why the start failed; pods on the node `by_hand` end when they are told to."""

    async def finish() -> bool:
        for pod in await pods(api, namespace):
            if pod["metadata"].get("deletionTimestamp") and pod["spec"]["nodeName"] == by_hand:
                path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
                await api.delete(path, grace_seconds=0, at=AT)
        return "Gone" in told.kinds(order.key)

    await until(finish)
    gone: Any = await told.until(order.key, Gone)
    await told.cluster.forget(order.key)
    await until_nothing_is_left(api, namespace)
    return str(gone.start_failure)


async def test_a_worker_that_cannot_reach_its_gang_names_the_address_and_the_network_policy(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1, by_hand=True)
    clock, port = Ahead(), free_port()
    told = await open_cluster([node], clock=clock, port=port)
    order = order_on([node], start_timeout_seconds=START_SECONDS)
    await told.cluster.launch(order)
    (pod,) = await pods_of(kubernetes_api, namespace, 1)
    await set_status(kubernetes_api, pod, phase="Running", podIP=NOBODY, podIPs=[{"ip": NOBODY}])
    view = told.cluster._roster.views[order.key]
    await until(lambda: (fate := view.fate(0)) is not None and fate.is_running)
    clock.seconds = 2 * START_SECONDS
    why = await failure(told, kubernetes_api, namespace, order, node)
    assert why.startswith("its pods run and its start barrier is shut after 60 s: ")
    assert f"member 0 does not answer this worker at {NOBODY}:{port} (" in why
    assert f"whether a NetworkPolicy lets the worker reach the gangs' pods on port {port}" in why


async def test_members_that_cannot_reach_each_other_are_named_with_the_address_and_the_network_policy(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], make_nodes: MakeNodes, open_cluster: OpenCluster,
    tmp_path: Path,
) -> None:  # fmt: skip
    (by_hand,) = await make_nodes(1, by_hand=True)
    clock = Ahead()
    told = await open_cluster([two_nodes[0], by_hand], clock=clock)
    order = order_on([two_nodes[0], by_hand], start_timeout_seconds=START_SECONDS)
    order = flow(order, tmp_path, "print('never', flush=True)")
    await told.cluster.launch(order)
    _, second = await pods_of(kubernetes_api, namespace, 2)
    await set_status(kubernetes_api, second, phase="Running", podIP=NOBODY, podIPs=[{"ip": NOBODY}])
    view = told.cluster._roster.views[order.key]

    async def is_heard() -> bool:
        fates = view.fates()
        is_whole = len(fates) == 2 and all(fate.is_running for fate in fates.values())
        return is_whole and await told.cluster._ask(view, {"op": "status"}) is not None

    await until(is_heard)
    clock.seconds = 2 * START_SECONDS
    why = await failure(told, kubernetes_api, namespace, order, by_hand)
    assert f"member 1 does not answer member 0 at {NOBODY}:7077" in why
    assert "whether a NetworkPolicy lets the gangs' pods reach each other on port 7077" in why
