"""Whom the chart's network policies mean: exactly the pods that carry the labels they select by."""

from typing import Any

import pytest

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import GangKey, LaunchOrder
from tests.deployments.kubernetes.conftest import rendered
from tests.deployments.kubernetes.test_chart_cache import plain
from tests.deployments.kubernetes.test_chart_metrics import container, one

POOLS = ["gpus", "My Pool!", "größe / 2", "_a." + "x" * 70, "y" * 62 + "--z"]


def labels_of_members(pool: str, worker: dict[str, Any]) -> dict[str, str]:
    """The labels that a worker with this container gives to the pods of its gangs."""
    settings = KubernetesSettings.from_environment(pool, access=ClusterAccess(), environment=plain(worker["env"]))
    member = MemberPlacement(node="n1", devices=("n1/nvidia.com/gpu/0",))
    order = LaunchOrder(
        key=GangKey("run", 1), name="", request=GangRequest(devices_per_node=1),
        placement=Placement(members=(member,)), env={},
    )  # fmt: skip
    (job,) = jobs_of(order, settings, namespace=settings.namespace)
    labels: dict[str, str] = job["spec"]["template"]["metadata"]["labels"]
    return labels


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) == {"matchLabels"}
    return bool(selector["matchLabels"]) and selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("pool", POOLS)
def test_members_and_worker_may_speak_with_each_other_whatever_the_pool_is_called(pool: str) -> None:
    objects = rendered("x", f"pool={pool}", "agent.enabled=true")
    worker = container(objects, "Deployment", "dsec-worker")
    assert worker["command"][-1] == pool
    members = labels_of_members(pool, worker)
    workers = one(objects, "Deployment", "dsec-worker")["spec"]["template"]["metadata"]["labels"]
    gangs = one(objects, "NetworkPolicy", "x-dsec-gangs")["spec"]
    assert selects(gangs["podSelector"], members) and not selects(gangs["podSelector"], workers)
    among_themselves, from_the_worker = gangs["ingress"]
    assert selects(among_themselves["from"][0]["podSelector"], members) and "ports" not in among_themselves
    assert selects(from_the_worker["from"][0]["podSelector"], workers)
    port = int(plain(worker["env"])["DSEC_OUTPOST_PORT"])
    assert from_the_worker["ports"] == [{"protocol": "TCP", "port": port}]
    own = one(objects, "NetworkPolicy", "dsec-worker")["spec"]
    assert selects(own["podSelector"], workers) and not selects(own["podSelector"], members)
    (to_members,) = [rule for rule in own["egress"] if "to" in rule]
    assert selects(to_members["to"][0]["podSelector"], members)
    assert to_members["ports"] == from_the_worker["ports"]


def test_the_agents_policy_means_agents_and_nobody_else() -> None:
    objects = rendered("x", "agent.enabled=true")
    policy = one(objects, "NetworkPolicy", "dsec-agent")["spec"]["podSelector"]
    labels = {
        kind: one(objects, kind, name)["spec"]["template"]["metadata"]["labels"]
        for kind, name in [("DaemonSet", "dsec-agent"), ("Deployment", "dsec-worker")]
    }
    assert selects(policy, labels["DaemonSet"]) and not selects(policy, labels["Deployment"])
