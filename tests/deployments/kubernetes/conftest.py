"""The chart rendered for tests, and what is left of it in the cluster taken away."""

from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
import pytest_asyncio

from dsec_deployments.control_plane import binaries
from dsec_deployments.kubernetes import chart
from dsec_deployments.kubernetes.kinds import Kinds
from dsec_workers.clusters.kubernetes.api import Api, Object
from tests.fixtures.kubernetes import skip_without_programs

EVERYTHING = (
    "agent.enabled=true",
    "agent.block=node",
    "agent.s3Secret=buckets",
    "agent.volumes[0].name=ca,agent.volumes[0].configMap.name=ca",
    "agent.volumeMounts[0].name=ca,agent.volumeMounts[0].mountPath=/etc/ca",
    "gangs.namespaces={{{namespace},{other}}}",
    "gangs.cacheHostPath=/var/lib/dsec/cache",
    "gangs.checkpoints=s3://bucket/c",
    "gangs.startSeconds=600",
    "worker.env[0].name=DSEC_IMAGE_PULL,worker.env[0].value=1h",
    "gangs.nodeSelector=pool=gpus",
    "gangs.serviceAccountAnnotations.iam=buckets",
    "quotas.{namespace}.requests\\.nvidia\\.com/gpu=64",
    "image.pullSecrets={{registry}}",
    "metrics.rules=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    "worker.clusterBlock=gpus",
    "worker.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone",
    "worker.priorityClassName=system-cluster-critical",
    "worker.tolerations[0].operator=Exists",
    "worker.serviceAccountAnnotations.iam=ledger",
    "worker.volumes[0].name=ca,worker.volumes[0].configMap.name=ca",
    "worker.volumeMounts[0].name=ca,worker.volumeMounts[0].mountPath=/etc/ca",
)
"""Assignments that make every part of the chart and fill every kind of value, for `filled`."""


def filled(values: Sequence[str], namespace: str, other: str) -> list[str]:
    """`values` for gangs in these two namespaces, of which the first is the release's."""
    return [each.format(namespace=namespace, other=other) for each in values]


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
    objects = rendered(namespace, *filled(EVERYTHING, namespace, "another"))
    kinds = await Kinds.of(kubernetes_api, objects)
    for item in objects:
        if "namespace" not in item["metadata"]:
            await kubernetes_api.delete(kinds.path(item), at="test.chart")


@pytest_asyncio.fixture
async def other_namespace(kubernetes_api: Api) -> AsyncIterator[str]:
    """A second namespace for gangs."""
    name = f"t-{uuid4().hex[:12]}"
    await kubernetes_api.create("/api/v1/namespaces", {"metadata": {"name": name}}, at="test.kube")
    yield name
    await kubernetes_api.delete(f"/api/v1/namespaces/{name}", at="test.kube")


async def token_of(api: Api, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str((await api.create(path, asked, at="test.token"))["status"]["token"])


Rights = dict[tuple[str, str], set[str]]
"""Verbs by group and resource; a resource of which one object is meant has its name behind it."""


def stated_rights(objects: list[Object], *kinds: str) -> Rights:
    """What the roles of these kinds among `objects` allow."""
    return rights_of([rule for role in objects if role["kind"] in kinds for rule in role["rules"]])


def rights_of(rules: list[Object]) -> Rights:
    """What rules allow, one entry a resource."""
    found: Rights = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [""]:
                    what = (group, f"{resource}/{name}" if name else resource)
                    found.setdefault(what, set()).update(rule["verbs"])
    return found
