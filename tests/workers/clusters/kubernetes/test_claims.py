"""Pods that claim volumes: kube-scheduler binds the claims, and may choose no other node than ours."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import Started
from tests.workers.clusters.kubernetes.conftest import AT, MakeNodes, OpenCluster, order_on, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CLASSES, VOLUMES = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"


@pytest_asyncio.fixture
async def local_disks(kubernetes_api: Api, namespace: str) -> AsyncIterator[str]:
    """A storage class whose volumes somebody makes by hand, and whose claims wait for their first pod."""
    body = {
        "metadata": {"name": namespace},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await kubernetes_api.create(CLASSES, body, at=AT)
    yield namespace
    await kubernetes_api.delete(f"{CLASSES}/{namespace}", at=AT)
    await kubernetes_api.delete(f"{VOLUMES}/{namespace}", at=AT)


async def test_a_gang_with_ephemeral_volumes_gets_them_bound_on_the_node_that_was_chosen(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster, local_disks: str
) -> None:
    _, chosen, _ = nodes = await make_nodes(3)
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [chosen]}]}
    disk = {
        "metadata": {"name": local_disks},
        "spec": {
            "storageClassName": local_disks,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": "/mnt/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        },
    }
    await kubernetes_api.create(VOLUMES, disk, at=AT)
    asked = {"storageClassName": local_disks, "accessModes": ["ReadWriteOnce"]}
    claim = {"spec": {**asked, "resources": {"requests": {"storage": "1Gi"}}}}
    volume = {"name": "fast", "ephemeral": {"volumeClaimTemplate": claim}}
    template = {"spec": {"template": {"spec": {"volumes": [volume]}}}}
    told = await open_cluster(nodes, has_outposts=False)
    order = order_on([chosen], job_manifest=template)
    await told.cluster.launch(order)

    async def bound() -> str | None:
        (found,) = (await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"))[0] or [{}]
        return found["spec"]["volumeName"] if (found.get("status") or {}).get("phase") == "Bound" else None

    assert await until(bound) == local_disks
    await told.until(order.key, Started)
    (pod,) = (await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/pods"))[0]
    assert pod["spec"]["nodeName"] == chosen
