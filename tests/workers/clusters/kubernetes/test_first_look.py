"""What an adapter knows when it answers for the first time: everything that was there before it.

T39 is volcano#5174, #1417 and #4888: the first decision was made before every list had been applied.
"""

from typing import Any

import pytest

from dsec_blocks.model.devices import Health
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.protocol import Started
from tests.workers.clusters.kubernetes.conftest import AT, RESOURCE, MakeNodes, OpenCluster, order_on
from tests.workers.clusters.kubernetes.test_allowance import gang, set_quota

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def foreign(node: str, gpus: int) -> dict[str, Any]:
    """Somebody's pod that is on the node already."""
    container = {"name": "c", "image": "x", "resources": {"limits": {RESOURCE: str(gpus)}}}
    return {"metadata": {"name": "theirs"}, "spec": {"nodeName": node, "containers": [container]}}


async def healthy(cluster: KubernetesCluster) -> int:
    """How many cards of its one node take a gang, or have one of its own."""
    (node,) = await cluster.nodes()
    return sum(device.health is Health.HEALTHY for device in node.devices)


async def test_t39_the_first_answer_counts_foreign_pods_quotas_and_our_own_gangs(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1, gpus=4)
    await kubernetes_api.create(f"/api/v1/namespaces/{namespace}/pods", foreign(node, 2), at=AT)
    await set_quota(kubernetes_api, namespace, {f"requests.{RESOURCE}": "3"})
    first = await open_cluster([node], has_outposts=False)
    order = order_on([node])
    await first.cluster.launch(order)
    await first.until(order.key, Started)
    await first.close()
    second = (await open_cluster([node], has_outposts=False)).cluster
    assert await healthy(second) == 1, "whosever the others are"
    assert second.allowance({"r": gang("r", devices_per_node=1)}, {}) is not None, "it has read the quota"
    (observed,) = await second.adopt()
    assert (observed.key, observed.placement) == (order.key, order.placement)
    assert await healthy(second) == 2, "its own and the free one"
