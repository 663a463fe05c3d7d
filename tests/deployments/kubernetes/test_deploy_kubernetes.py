"""`dsec deploy kubernetes` on a real API server: its manifests are accepted, become healthy, and may do little."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import InvalidRequest
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.control_plane.simulated_nodes import manifest
from dsec_deployments.kubernetes import applying
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from tests.deployments.kubernetes.conftest import (
    EVERYTHING,
    Rights,
    filled,
    rendered,
    rights_of,
    stated_rights,
    token_of,
)
from tests.fixtures.forking import run_module
from tests.fixtures.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


OFF = {
    "flowControl.enabled=false": {"FlowSchema", "PriorityLevelConfiguration"},
    "networkPolicy.enabled=false": {"NetworkPolicy"},
    "gangs.priorityClass.create=false": {"PriorityClass"},
    "agent.enabled=false": {"DaemonSet"},
    "metrics.rules=false": {"ConfigMap"},
}
"""What switches a part off, and the kinds that only this part makes."""


@pytest.mark.parametrize(
    "values", [(), EVERYTHING, *((*EVERYTHING, off) for off in OFF), tuple(OFF)],
    ids=["default", "everything", *OFF, "nothing"],
)  # fmt: skip
async def test_every_manifest_is_accepted_by_the_real_api_server_and_none_is_kept(
    kubernetes_api: Api, namespace: str, other_namespace: str, values: tuple[str, ...]
) -> None:
    objects = rendered(namespace, *filled(values, namespace, other_namespace))
    found = await applying.differences(kubernetes_api, objects)
    assert {each.what for each in found} == {"new"}
    kinds = {each.kind for each in found}
    assert {"Deployment", "Role", "ClusterRole", "PodDisruptionBudget", "ServiceAccount", "Secret"} <= kinds
    if EVERYTHING[0] in values:
        assert {kind for made in OFF.values() for kind in made} - kinds == OFF.get(values[-1], set())
        assert {each.namespace for each in found if each.kind == "Role"} == {namespace, other_namespace}
    assert {each.what for each in await applying.differences(kubernetes_api, objects)} == {"new"}


async def test_a_manifest_that_the_api_server_refuses_is_named_with_its_field(
    kubernetes_api: Api, namespace: str
) -> None:
    objects = rendered(namespace, "worker.resources.requests.cpu=-1")
    with pytest.raises(applying.NotDeployed, match=rf"Deployment {namespace}/dsec-worker is not .*requests\[cpu\]"):
        await applying.differences(kubernetes_api, objects)


async def test_a_namespace_that_does_not_exist_is_named_with_what_to_do(kubernetes_api: Api) -> None:
    with pytest.raises(applying.NotDeployed, match=r'"nowhere" not found.*kubectl create namespace nowhere'):
        await applying.differences(kubernetes_api, rendered("nowhere"))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("worker.replicas=-1", "/worker/replicas.*minimum"),
        ("replicas=3", "additional properties 'replicas' not allowed"),
        ("gangs.port=70000", "/gangs/port.*maximum"),
        ("user=0", "/user.*minimum"),
    ],
)
def test_values_that_the_chart_does_not_know_are_refused(value: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        rendered("default", value)


async def test_it_is_applied_and_healthy_and_a_second_time_changes_nothing(kubernetes_api: Api, cleared: str) -> None:
    await kubernetes_api.create("/api/v1/nodes", manifest("chart-node"), at="test.node")
    try:
        objects = rendered(cleared)
        await applying.apply(kubernetes_api, objects)
        await applying.until_healthy(kubernetes_api, objects, clock=SystemClock(), seconds=90.0)
        assert {each.what for each in await applying.differences(kubernetes_api, objects)} == {"unchanged"}
        secret = f"/api/v1/namespaces/{cleared}/secrets/dsec-gangs"
        await kubernetes_api.merge(secret, {"data": {"KEY": "dmFsdWU="}}, at="test.secret")
        await applying.apply(kubernetes_api, objects)
        assert (await kubernetes_api.get(secret))["data"] == {"KEY": "dmFsdWU="}, "what the worker wrote stays"
        more = await applying.differences(kubernetes_api, rendered(cleared, "worker.replicas=3"))
        assert [(each.kind, each.fields) for each in more if each.what == "changed"] == [
            ("Deployment", ("spec.replicas", "spec.template.spec.containers"))
        ], "a worker knows how many there are"
    finally:
        await kubernetes_api.delete("/api/v1/nodes/chart-node", at="test.node")


async def test_what_does_not_become_healthy_is_said_with_what_is_missing(kubernetes_api: Api, cleared: str) -> None:
    objects = rendered(cleared, "worker.nodeSelector.no=such-node")
    await applying.apply(kubernetes_api, objects)
    with pytest.raises(applying.NotDeployed, match=rf"Deployment {cleared}/dsec-worker: 0 of 2 pods are available"):
        await applying.until_healthy(kubernetes_api, objects, clock=SystemClock(), seconds=0.5)


async def test_no_account_may_do_more_than_its_roles_in_the_chart_say(
    kubernetes_api: Api, kubernetes: ControlPlane, cleared: str
) -> None:
    objects = [
        item
        for item in rendered(cleared, "agent.enabled=true")
        if item["kind"] in ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
    ]
    accounts = [item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"]
    assert sorted(accounts) == ["dsec-agent", "dsec-member", "dsec-worker"]
    await applying.apply(kubernetes_api, objects)
    await kubernetes_api.apply(
        f"/api/v1/namespaces/{cleared}/serviceaccounts/nobody",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}},
        owner="test",
        at="test.account",
    )
    everybody = await rules_of(kubernetes_api, kubernetes, cleared, "nobody", cleared)
    for account, where, stated in [
        ("dsec-worker", cleared, stated_rights(objects, "ClusterRole", "Role")),
        ("dsec-worker", "default", stated_rights(objects, "ClusterRole")),
        ("dsec-member", cleared, {}),
        ("dsec-agent", cleared, {}),
    ]:
        found = await rules_of(kubernetes_api, kubernetes, cleared, account, where)
        mine = {what: verbs - everybody.get(what, set()) for what, verbs in found.items()}
        assert {what: verbs for what, verbs in mine.items() if verbs} == stated, (account, where)


async def rules_of(api: Api, plane: ControlPlane, namespace: str, account: str, where: str) -> Rights:
    """What an account may do in a namespace, as the API server tells it itself."""
    token = await token_of(api, namespace, account)
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": where},
    }
    async with api._session.post(
        f"{plane.server}/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        json=review,
        headers={"Authorization": f"Bearer {token}"},
    ) as answer:
        status: dict[str, Any] = (await answer.json())["status"]
    assert not status["incomplete"]
    return rights_of(status["resourceRules"])


def test_the_store_of_gangs_that_name_none_reaches_the_worker_that_tells_them() -> None:
    for given, told in (("gangs.checkpoints=s3://bucket/c", "s3://bucket/c"), ("gangs.port=7077", "")):
        (worker,) = [each for each in rendered("x", given) if each["kind"] == "Deployment"]
        env = worker["spec"]["template"]["spec"]["containers"][0]["env"]
        environment = {each["name"]: each["value"] for each in env if "value" in each}
        settings = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=environment)
        assert settings.store == told


def test_pods_of_the_chart_are_not_root_and_their_root_file_systems_are_read_only() -> None:
    for item in rendered("x", "agent.enabled=true", "agent.ownPath=false"):
        if item["kind"] not in ("Deployment", "DaemonSet"):
            continue
        pod = item["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


def dsec(kubernetes: ControlPlane, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "KUBECONFIG": kubernetes.kubeconfig, "COLUMNS": "200"}
    return run_module("dsec_deployments.cli", ("deploy", "kubernetes", *words), env=env, cwd=cwd, seconds=900)


def test_the_command_shows_the_difference_and_changes_nothing(
    kubernetes: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    for option in ("--dry-run=server", "--dry-run"):
        done = dsec(kubernetes, "-n", namespace, option, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Deployment" in done.stdout and "are accepted by the API server; nothing was changed" in done.stdout


async def test_what_pods_could_not_start_without_is_asked_for_first(
    kubernetes_api: Api, kubernetes: ControlPlane, cleared: str, tmp_path: Path
) -> None:
    async def secret(name: str, **values: str) -> None:
        path = f"/api/v1/namespaces/{cleared}/secrets/{name}"
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
        await kubernetes_api.apply(path, body, owner="test", at="test.secret")

    def refused(*words: str) -> str:
        done = dsec(kubernetes, "-n", cleared, *words, cwd=tmp_path)
        assert done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr

    assert f"no Secret {cleared}/dsec-prefect. Make it: kubectl -n {cleared} create secret" in refused()
    await secret("dsec-prefect", OTHER="x")
    assert f"Secret {cleared}/dsec-prefect has no key PREFECT_API_URL" in refused()
    await secret("dsec-prefect", PREFECT_API_URL="http://prefect:4200/api")
    await secret("dsec-ledger", url="sqlite:////ledger.db")
    assert "Deployment dsec-worker has 2 replicas" in refused()
    assert "DaemonSet dsec-agent has a pod on every node" in refused("--set=agent.enabled=true,worker.replicas=1")
    assert not (await kubernetes_api.list(f"/apis/apps/v1/namespaces/{cleared}/deployments"))[0], (
        "nothing is left behind"
    )
    await secret("dsec-ledger", url="postgresql+psycopg://ledger/dsec")
    await kubernetes_api.create("/api/v1/nodes", manifest("command-node"), at="test.node")
    try:
        done = dsec(kubernetes, "-n", cleared, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "objects are in place and healthy" in done.stdout
    finally:
        await kubernetes_api.delete("/api/v1/nodes/command-node", at="test.node")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("-n", "nowhere", "--dry-run"), 'namespaces "nowhere" not found'),
        (("--set", "worker.replicas=none", "--dry-run"), "/worker/replicas"),
        (("--values", "missing.yaml", "--dry-run"), "missing.yaml does not exist"),
        (("--kubeconfig", "missing", "--dry-run"), "no Kubernetes cluster"),
        (("--kubeconfig", "away", "--dry-run"), "does not answer"),
    ],
)
def test_bad_input_is_one_line(
    kubernetes: ControlPlane, tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    away = json.loads(Path(kubernetes.kubeconfig).read_text())
    away["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "away").write_text(json.dumps(away))
    done = dsec(kubernetes, *words, cwd=tmp_path)
    assert done.returncode != 0, done.stderr
    assert complaint in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


async def test_who_lacks_a_permission_is_told_which_on_what(
    kubernetes_api: Api, kubernetes: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": await token_of(kubernetes_api, namespace, "default")}
    (tmp_path / "limited").write_text(json.dumps(config))
    done = dsec(kubernetes, "--kubeconfig", "limited", "-n", namespace, "--dry-run", cwd=tmp_path)
    assert done.returncode != 0
    assert f"system:serviceaccount:{namespace}:default" in done.stderr and 'cannot get resource "' in done.stderr
    assert "grant that verb" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_manifests_can_be_printed(kubernetes: ControlPlane, tmp_path: Path) -> None:
    import yaml

    done = dsec(kubernetes, "--dry-run=client", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"Deployment", "ServiceAccount"} <= {each["kind"] for each in yaml.safe_load_all(done.stdout)}
