"""A worker's environment: what is refused at the edge, in one line that names the variable."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.settings import WorkerSettings


def test_gangs_are_processes_here_unless_the_environment_says_kubernetes() -> None:
    assert WorkerSettings.from_environment({}).cluster == "local"
    assert WorkerSettings.from_environment({"DSEC_CLUSTER": "kubernetes"}).cluster == "kubernetes"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"DSEC_METRICS_PORT": "70000"},
            "DSEC_METRICS_PORT: '70000' is no port; give 1 to 65535, or 0 for any free one",
        ),
        ({"DSEC_DRAIN": "yes"}, "DSEC_DRAIN: 'yes' is not 'evict'"),
        ({"DSEC_CLUSTER": "slurm"}, "DSEC_CLUSTER: 'slurm' is neither 'local' nor 'kubernetes'"),
        (
            {"DSEC_REPLICAS": "2", "DSEC_LEDGER_URL": "sqlite:////data/ledger.db"},
            "DSEC_LEDGER_URL: 2 workers cannot share the SQLite file /data/ledger.db; give them a PostgreSQL database",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        WorkerSettings.from_environment(environment)
    assert words in str(refused.value)


def test_health_and_metrics_are_answered_only_where_somebody_says_so_and_then_on_this_machine_alone() -> None:
    assert WorkerSettings.from_environment({}).metrics_port is None
    settings = WorkerSettings.from_environment({"DSEC_METRICS_PORT": "0"})
    assert (settings.metrics_host, settings.metrics_port) == ("127.0.0.1", 0)


def test_two_replicas_share_a_postgresql_ledger() -> None:
    settings = WorkerSettings.from_environment({"DSEC_REPLICAS": "2", "DSEC_LEDGER_URL": "postgresql://db/dsec"})
    assert settings.ledger_url == "postgresql://db/dsec"


def test_the_kubernetes_adapters_settings_come_from_the_environment() -> None:
    environment = {
        "DSEC_NAMESPACE": "team",
        "DSEC_IMAGE": "registry/dsec:1",
        "DSEC_PRIORITY_CLASS": "dsec-gang",
        "DSEC_OUTPOST_PORT": "7100",
    }
    found = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=environment)
    assert (found.pool, found.namespace, found.image, found.priority_class, found.port) == (
        "gpus",
        "team",
        "registry/dsec:1",
        "dsec-gang",
        7100,
    )
    with pytest.raises(InvalidRequest, match="DSEC_OUTPOST_PORT: '70000' is no port number"):
        KubernetesSettings.from_environment("g", access=ClusterAccess(), environment={"DSEC_OUTPOST_PORT": "70000"})
