"""The chart rendered for tests, and what is left of it in the cluster taken away."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec_deployments.control_plane import binaries
from dsec_deployments.kubernetes import chart
from dsec_deployments.kubernetes.kinds import Kinds
from dsec_workers.clusters.kubernetes.api import Api, Object
from tests.fixtures.kubernetes import skip_without_programs

EVERYTHING = (
    "agent.enabled=true",
    "quotas.{namespace}.requests\\.nvidia\\.com/gpu=64",
    "image.pullSecrets={{registry}}",
    "metrics.rules=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
)


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """The chart is rendered by it."""
    skip_without_programs(["helm"])


def rendered(namespace: str, *assignments: str, release: str = "dsec") -> list[Object]:
    return chart.render(
        release=release,
        namespace=namespace,
        kubernetes_version=binaries.KUBERNETES_VERSION,
        assignments=assignments,
    )


@pytest_asyncio.fixture
async def cleared(kubernetes_api: Api, namespace: str) -> AsyncIterator[str]:
    """A namespace, after which nothing cluster-wide of a release in it is left."""
    yield namespace
    objects = rendered(namespace, *(each.format(namespace=namespace) for each in EVERYTHING))
    kinds = await Kinds.of(kubernetes_api, objects)
    for item in objects:
        if "namespace" not in item["metadata"]:
            await kubernetes_api.delete(kinds.path(item), at="test.chart")


async def token_of(api: Api, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str((await api.create(path, asked, at="test.token"))["status"]["token"])
