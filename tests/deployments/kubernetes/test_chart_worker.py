"""What the chart says about the worker: what it is told, where it may run, as whom, and what else it is given."""

import re

import pytest
import yaml

from dsec_blocks.model.errors import InvalidRequest
from dsec_deployments.kubernetes import chart
from dsec_workers.clusters import opening
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.settings import WorkerSettings
from tests.deployments.kubernetes.conftest import rendered
from tests.deployments.kubernetes.test_chart_cache import plain
from tests.deployments.kubernetes.test_chart_metrics import container, one

BOTH = [("worker", "Deployment", "dsec-worker"), ("agent", "DaemonSet", "dsec-agent")]


def told(*assignments: str) -> dict[str, str]:
    return plain(container(rendered("x", *assignments), "Deployment", "dsec-worker")["env"])


def test_several_workers_refuse_an_sqlite_ledger_whoever_has_applied_the_chart() -> None:
    sqlite = {"DSEC_LEDGER_URL": "sqlite:////ledger.db"}
    with pytest.raises(InvalidRequest, match="2 workers cannot share the SQLite file /ledger"):
        WorkerSettings.from_environment({**told(), **sqlite})
    assert WorkerSettings.from_environment({**told("worker.replicas=1"), **sqlite}).ledger_url.startswith("sqlite")


def test_times_and_restarts_of_the_chart_are_a_workers_own_and_reach_it_when_somebody_says_others() -> None:
    names = ("reservation_seconds", "linger_seconds", "lease_ttl_seconds", "infrastructure_restarts")
    somewhere = {"DSEC_HOME": "/h", "DSEC_LEDGER_URL": "postgresql://d"}

    def found(*assignments: str) -> tuple[object, ...]:
        environment = told(*assignments)
        worker = WorkerSettings.from_environment(
            {"DSEC_HOME": "/h", "DSEC_LEDGER_URL": "postgresql://d", **environment}
        )
        pods = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=environment)
        return (*(getattr(worker, name) for name in names), pods.pull_seconds)

    assert found() == (120.0, 60.0, 6.0, 3, 1200.0)
    own = WorkerSettings.from_environment(somewhere)
    assert found() == (*(getattr(own, name) for name in names), KubernetesSettings(pool="gpus").pull_seconds)
    gangs = [f"gangs.{each}" for each in ("startSeconds=600", "lingerSeconds=5", "restarts=0", "imagePullSeconds=3600")]
    assert found(*gangs, "worker.leaseSeconds=15") == (600.0, 5.0, 15.0, 0, 3600.0)


def test_a_variable_that_the_values_give_the_worker_themselves_is_there_once() -> None:
    env = ("worker.env[0].name=DSEC_IMAGE_PULL", "worker.env[0].value=1h")
    container_env = container(rendered("x", *env), "Deployment", "dsec-worker")["env"]
    assert [each["value"] for each in container_env if each["name"] == "DSEC_IMAGE_PULL"] == ["1h"]
    assert len({each["name"] for each in container_env}) == len(container_env)


@pytest.mark.parametrize("value", ["gangs.startSeconds=2m", "gangs.restarts=-1", "worker.leaseSeconds=1"])
def test_a_time_that_means_nothing_is_refused_before_anything_is_applied(value: str) -> None:
    with pytest.raises(InvalidRequest, match=value.partition("=")[0].replace(".", "/")):
        rendered("x", value)


def test_a_block_that_names_another_cluster_reaches_the_worker() -> None:
    assert told("worker.clusterBlock=gpus")[opening.ENV_BLOCK] == "gpus"
    assert opening.ENV_BLOCK not in told(), "it serves the cluster that it runs on"


@pytest.mark.parametrize(("part", "kind", "name"), BOTH)
def test_a_part_runs_where_and_as_the_values_say(part: str, kind: str, name: str) -> None:
    in_zone = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    values = (
        f"{in_zone}.matchExpressions[0].key=zone",
        f"{in_zone}.matchExpressions[0].operator=Exists",
        "priorityClassName=system-cluster-critical",
        "nodeSelector.disk=ssd",
        "tolerations[0].operator=Exists",
        "volumes[0].name=ca",
        "volumes[0].configMap.name=company-ca",
        "volumeMounts[0].name=ca",
        "volumeMounts[0].mountPath=/etc/ca",
        "serviceAccountAnnotations.eks\\.amazonaws\\.com/role-arn=arn:aws:iam::1:role/dsec",
    )
    objects = rendered("x", "agent.enabled=true", *(f"{part}.{value}" for value in values))
    pod = one(objects, kind, name)["spec"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["nodeSelector"]["disk"] == "ssd" and {"operator": "Exists"} in pod["tolerations"]
    assert {"name": "ca", "configMap": {"name": "company-ca"}} in pod["volumes"]
    assert {"name": "ca", "mountPath": "/etc/ca"} in pod["containers"][0]["volumeMounts"]
    account = one(objects, "ServiceAccount", pod["serviceAccountName"])
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/dsec"}


def test_members_have_an_identity_of_their_own_in_every_namespace() -> None:
    values = ("gangs.namespaces={team-a,team-b}", "gangs.serviceAccountAnnotations.iam=buckets")
    accounts = [each for each in rendered("x", *values) if each["kind"] == "ServiceAccount"]
    members = {each["metadata"]["namespace"]: each["metadata"].get("annotations") for each in accounts}
    assert members == {"x": None, "team-a": {"iam": "buckets"}, "team-b": {"iam": "buckets"}}


def test_the_page_about_kubernetes_names_only_values_that_the_chart_has() -> None:
    values = yaml.safe_load((chart.folder() / "values.yaml").read_text())
    page = (chart.folder().parents[2] / "docs/kubernetes.md").read_text()
    named = set(re.findall(rf"`((?:{'|'.join(values)})\.[\w.]*\w)", page))
    assert len(named) > 15, "the page names values as `part.name`"
    for name in sorted(name for name in named if not name.endswith((".yaml", ".io"))):
        place = values
        for key in name.split("."):
            assert key in place, name
            place = place[key]
