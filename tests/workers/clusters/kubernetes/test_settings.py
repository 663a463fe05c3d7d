"""What a worker's environment says of its pool on Kubernetes, and what of it is refused."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings


def told(**environment: str) -> KubernetesSettings:
    names = {f"DSEC_KUBERNETES_{name}": value for name, value in environment.items()}
    return KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=names)


def test_an_empty_variable_means_what_is_shipped() -> None:
    names = ("TOLERATIONS", "TOPOLOGY_LABELS", "PULL_SECRETS", "USER", "SHARED_MEMORY", "UPLOAD")
    assert told(**dict.fromkeys(names, "")) == told() == KubernetesSettings(pool="gpus")


def test_what_gangs_pods_are_made_of_is_read_from_the_environment() -> None:
    found = told(
        TOPOLOGY_LABELS="topology.kubernetes.io/zone, cloud.google.com/gce-topology-block",
        PULL_SECRETS="registry,other.registry",
        USER="2000",
        SHARED_MEMORY="16Gi",
        UPLOAD="2min",
    )
    assert found.topology_labels == ("topology.kubernetes.io/zone", "cloud.google.com/gce-topology-block")
    assert found.pull_secrets == ("registry", "other.registry")
    assert (found.user, found.shared_memory, found.upload_seconds) == (2000, "16Gi", 120)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("TOPOLOGY_LABELS", "zone,a b", "'a b' is no key of a label"),
        ("PULL_SECRETS", "Registry", "'Registry' is no name of a Kubernetes object"),
        ("USER", "root", "'root' is no user's number"),
        ("SHARED_MEMORY", "much", "'much' is not a Kubernetes quantity"),
        ("SHARED_MEMORY", "0", "'0' is nothing"),
        ("UPLOAD", "soon", "'soon' is not a duration"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name: str, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"DSEC_KUBERNETES_{name}: ") as refused:
        told(**{name: text})
    assert why in str(refused.value)
