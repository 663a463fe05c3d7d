"""GPU nodes carry taints that keep others away; gangs go there all the same, and the pool's owner says what else."""

from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from tests.workers.clusters.kubernetes.conftest import order_on
from tests.workers.clusters.kubernetes.test_manifest import pod_of
from tests.workers.clusters.kubernetes.test_node_model import node

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
OURS = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


def told(text: str) -> KubernetesSettings:
    environment = {"DSEC_KUBERNETES_TOLERATIONS": text}
    return KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=environment)


def open_nodes(settings: KubernetesSettings, *taints: dict[str, Any]) -> list[str]:
    supply = Supply(settings, clock=SystemClock())
    for number, taint in enumerate(taints):
        supply.node_changed(None, node(f"n{number}", taints=[taint]))
    return [each.name for each in supply.nodes() if each.schedulable]


def test_a_gpu_node_with_the_customary_taint_is_open_to_gangs() -> None:
    amd, intel = ({"key": key, "effect": "NoExecute"} for key in ("amd.com/gpu", "gpu.intel.com/xe"))
    assert open_nodes(told(""), GPU_TAINT, amd, intel, OURS) == ["n0", "n1", "n2"]
    (job,) = jobs_of(order_on(["n0"]), told(""), namespace="team")
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod_of(job)["tolerations"]


def test_a_pools_owner_says_which_taints_do_not_keep_gangs_away() -> None:
    settings = told('[{"key": "dedicated", "operator": "Equal", "value": "ml"}]')
    assert open_nodes(settings, GPU_TAINT, OURS) == ["n1"]
    (job,) = jobs_of(order_on(["n1"]), settings, namespace="team")
    assert pod_of(job)["tolerations"] == [{"key": "dedicated", "value": "ml"}]
    assert open_nodes(told("[]"), GPU_TAINT, OURS) == []


def test_what_a_template_tolerates_stays_on_its_pods_beside_ours_and_once() -> None:
    own = [{"key": "gpu", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]
    template = {"spec": {"template": {"spec": {"tolerations": own}}}}
    settings = told("")
    (job,) = jobs_of(order_on(["a"]), settings, namespace="team", template=template)
    assert pod_of(job)["tolerations"] == [*own, *settings.tolerations[1:]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nvidia.com/gpu", "'nvidia.com/gpu' is not JSON"),
        ('{"key": "a"}', "Input should be a valid list"),
        ('[{"key": "a", "operator": "Exist"}]', "entry 0, operator: Input should be 'Exists' or 'Equal'"),
        ('[{"key": "a"}, {"key": "b", "effct": "NoExecute"}]', "entry 1, effct: Extra inputs are not permitted"),
        ('[{"value": "a"}]', "a toleration without a key has the operator Exists"),
        ('[{"key": "a", "operator": "Exists", "value": "b"}]', "with the operator Exists there is no value"),
    ],
)
def test_tolerations_that_cannot_be_read_are_refused_at_the_workers_start(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match="DSEC_KUBERNETES_TOLERATIONS: ") as refused:
        told(text)
    assert why in str(refused.value) and "write for example [{" in str(refused.value)
