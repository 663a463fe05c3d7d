"""What the chart says of gangs' pods is what the worker makes them of."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from tests.deployments.kubernetes.conftest import rendered
from tests.deployments.kubernetes.test_chart_cache import plain
from tests.deployments.kubernetes.test_chart_metrics import container


def told(*assignments: str) -> KubernetesSettings:
    worker = plain(container(rendered("x", *assignments), "Deployment", "dsec-worker")["env"])
    return KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=worker)


def test_what_the_chart_ships_is_what_a_worker_takes_when_nobody_says() -> None:
    shipped, own = told(), KubernetesSettings(pool="gpus")
    for name in ("tolerations", "topology_labels", "pull_secrets", "user", "shared_memory", "upload_seconds"):
        assert getattr(shipped, name) == getattr(own, name), name


def test_a_charts_values_reach_the_pods_of_gangs() -> None:
    found = told(
        "gangs.tolerations[0].key=dedicated",
        "gangs.tolerations[0].value=ml",
        "gangs.topologyLabels={example.com/hall,example.com/rack}",
        "image.pullSecrets={registry,other}",
        "user=2000",
        "gangs.sharedMemory=16Gi",
        "gangs.uploadSeconds=300",
    )
    assert found.tolerations == ({"key": "dedicated", "value": "ml"},)
    assert found.topology_labels == ("example.com/hall", "example.com/rack")
    assert found.pull_secrets == ("registry", "other")
    assert (found.user, found.shared_memory, found.upload_seconds) == (2000, "16Gi", 300)
    assert told("gangs.restricted=false").user == 0


def test_a_toleration_that_is_no_object_is_refused_before_anything_is_applied() -> None:
    with pytest.raises(InvalidRequest, match="tolerations"):
        rendered("x", "gangs.tolerations={nvidia.com/gpu}")
