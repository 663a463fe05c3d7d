"""What the chart says about the node's cache: who owns it, who gets it, and with whose keys it is filled."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from tests.deployments.kubernetes.conftest import rendered
from tests.deployments.kubernetes.test_chart_metrics import container, one

SHARED = ("agent.enabled=true", "gangs.cacheHostPath=/var/lib/dsec/cache")


def plain(env: list[dict[str, str]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in env if "value" in each}


def test_the_pods_of_gangs_get_the_folder_that_the_agent_fills() -> None:
    objects = rendered("x", *SHARED)
    worker = plain(container(objects, "Deployment", "dsec-worker")["env"])
    agent = container(objects, "DaemonSet", "dsec-agent")
    settings = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=worker)
    assert settings.cache_path == plain(agent["env"])["DSEC_CACHE_DIR"] == "/var/lib/dsec/cache"
    (first,) = one(objects, "DaemonSet", "dsec-agent")["spec"]["template"]["spec"]["initContainers"]
    assert first["command"][-1] == "/var/lib/dsec/cache", "where a pod came first the kubelet made it, for root"


def test_nobody_shares_a_cache_unless_somebody_says_so() -> None:
    objects = rendered("x", "agent.enabled=true")
    worker = plain(container(objects, "Deployment", "dsec-worker")["env"])
    settings = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=worker)
    assert settings.cache_path == ""
    assert "DSEC_CACHE_DIR" not in plain(container(objects, "DaemonSet", "dsec-agent")["env"])


def test_an_agent_takes_its_cache_from_a_block_and_its_keys_from_a_secret() -> None:
    objects = rendered("x", *SHARED, "agent.block=node", "agent.s3Secret=buckets", "agent.env[0].name=HF_HOME",
                       "agent.env[0].value=/tmp")  # fmt: skip
    agent = container(objects, "DaemonSet", "dsec-agent")
    told = plain(agent["env"])
    assert (told["DSEC_CACHE_BLOCK"], told["HF_HOME"]) == ("node", "/tmp")
    assert "DSEC_CACHE_DIR" not in told, "the block says where, and the agent refuses to be told twice"
    assert agent["envFrom"] == [{"secretRef": {"name": "buckets"}}]


@pytest.mark.parametrize("path", ["/var/lib/other", "cache", "/var/lib/dsec/../etc"])
def test_a_folder_that_the_agent_does_not_have_is_refused_before_anything_is_applied(path: str) -> None:
    with pytest.raises(InvalidRequest, match="cacheHostPath"):
        rendered("x", "agent.enabled=true", f"gangs.cacheHostPath={path}")
