"""Which cluster a worker opens where a block of Prefect says so, and what it is told where there is no such block."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dsec_blocks.model.errors import InvalidRequest
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.opening import ENV_BLOCK, _open_kubernetes
from tests.fixtures.prefect import PrefectServer
from tests.workers.clusters.kubernetes.conftest import MakeNodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def with_prefect(prefect_server: PrefectServer) -> Iterator[None]:
    """Blocks are this server's."""
    with temporary_settings({PREFECT_API_URL: prefect_server.api_url}):
        yield


async def test_a_worker_drives_the_cluster_that_a_block_names_and_no_other(
    kubernetes: ControlPlane, namespace: str, make_nodes: MakeNodes, with_prefect: None
) -> None:
    from prefect_kubernetes.credentials import KubernetesClusterConfig

    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    name = f"cluster-{uuid4().hex[:6]}"
    await KubernetesClusterConfig(config=config, context_name=config["current-context"]).asave(name)
    (node,) = await make_nodes(1)
    environment = {ENV_BLOCK: name, "DSEC_NAMESPACE": namespace, "KUBECONFIG": "/of/another/cluster"}
    cluster = await _open_kubernetes("gpus", environment)
    try:
        assert isinstance(cluster, KubernetesCluster)
        assert node in {each.name for each in await cluster.nodes()}
    finally:
        await cluster.close()  # type: ignore[attr-defined]


async def test_a_block_that_nobody_saved_is_named_with_the_variable(with_prefect: None) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"{ENV_BLOCK}: there is no KubernetesClusterConfig block 'nowhere'"
    ) as told:
        await _open_kubernetes("gpus", {ENV_BLOCK: "nowhere"})
    assert len(str(told.value).splitlines()) == 1
