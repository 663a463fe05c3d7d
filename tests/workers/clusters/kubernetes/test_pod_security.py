"""As whom a gang's pods run, what they may do, and where they may write: all that Pod Security `restricted` accepts."""

from dataclasses import replace
from typing import Any

import pytest

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import Started
from tests.workers.clusters.kubernetes.conftest import AT, MakeNodes, OpenCluster, order_on
from tests.workers.clusters.kubernetes.test_manifest import SETTINGS, env_of, pod_of

RESTRICTED = {
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
    "capabilities": {"drop": ["ALL"]},
    "allowPrivilegeEscalation": False,
}
FS_GROUP = {"fsGroup": 10001, "fsGroupChangePolicy": "OnRootMismatch"}


def pod(
    of_pod: dict[str, Any] | None = None,
    of_container: dict[str, Any] | None = None,
    settings: KubernetesSettings = SETTINGS,
    **container: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec of a gang's pod, and its container, on a template with these."""
    containers = [{"securityContext": of_container, **container}, {"name": "sidecar", "image": "logs:1"}]
    spec = {"securityContext": of_pod, "containers": containers}
    (job,) = jobs_of(order_on(["a"]), settings, namespace="team", template={"spec": {"template": {"spec": spec}}})
    return pod_of(job), pod_of(job)["containers"][0]


def test_members_run_without_privileges_and_as_nobodys_root() -> None:
    spec, container = pod()
    assert container["securityContext"] == RESTRICTED and spec["securityContext"] == FS_GROUP
    assert "securityContext" not in spec["containers"][1], "other containers are the user's"


@pytest.mark.parametrize(
    ("of_pod", "of_container", "found"),
    [
        pytest.param({"runAsUser": 7}, None, {"runAsUser": None, "runAsGroup": None}, id="another user"),
        pytest.param(None, {"runAsUser": 7}, {"runAsUser": 7, "runAsGroup": None}, id="another user of the container"),
        pytest.param(
            None,
            {"capabilities": {"add": ["IPC_LOCK"]}},
            {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
            id="a capability more",
        ),
        pytest.param({"seccompProfile": {"type": "Localhost"}}, None, {"seccompProfile": None}, id="another profile"),
        pytest.param({"runAsUser": None}, {"runAsGroup": 8}, {"runAsGroup": 8}, id="another group, and a placeholder"),
    ],
)
def test_what_a_template_says_of_itself_stays(
    of_pod: dict[str, Any] | None, of_container: dict[str, Any] | None, found: dict[str, Any]
) -> None:
    spec, container = pod(of_pod, of_container)
    wanted = {**RESTRICTED, **found}
    assert container["securityContext"] == {name: value for name, value in wanted.items() if value is not None}
    for name, value in (of_pod or {}).items():
        assert value is None or spec["securityContext"][name] == value


@pytest.mark.parametrize(
    ("of_pod", "of_container"),
    [
        ({"runAsUser": 0}, None),
        (None, {"runAsUser": 0}),
        ({"runAsNonRoot": False}, None),
        (None, {"privileged": True}),
        (None, {"capabilities": {"add": ["SYS_ADMIN"]}}),
    ],
)
def test_a_template_that_asks_for_root_or_privileges_gets_no_half_of_ours(
    of_pod: dict[str, Any] | None, of_container: dict[str, Any] | None
) -> None:
    spec, container = pod(of_pod, of_container)
    assert (spec["securityContext"], container["securityContext"]) == (of_pod, of_container)


def test_a_pool_may_leave_the_user_to_its_images() -> None:
    (job,) = jobs_of(order_on(["a"]), replace(SETTINGS, user=0), namespace="team")
    assert "securityContext" not in pod_of(job) and "securityContext" not in pod_of(job)["containers"][0]
    assert "USER" not in env_of(job)


def test_a_member_writes_its_home_to_a_volume_of_its_own_and_the_users_own_wins() -> None:
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team")
    env, mounts = env_of(job), [mount["mountPath"] for mount in pod_of(job)["containers"][0]["volumeMounts"]]
    assert "/dsec" in mounts
    assert (env["HOME"], env["PREFECT_HOME"], env["USER"]) == ("/dsec/home", "/dsec/home/.prefect", "dsec")
    own = {"containers": [{"env": [{"name": "HOME", "value": "/home/mine"}]}]}
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team", template={"spec": {"template": {"spec": own}}})
    assert env_of(job)["HOME"] == "/home/mine"


def test_shared_memory_between_ranks_is_not_sixty_four_mebibytes() -> None:
    spec, container = pod(settings=replace(SETTINGS, shared_memory="16Gi"))
    (volume,) = [each for each in spec["volumes"] if each["name"] == "dsec-shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert {"name": "dsec-shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    (volume,) = [each for each in pod()[0]["volumes"] if each["name"] == "dsec-shm"]
    assert volume["emptyDir"] == {"medium": "Memory"}, "as much as the pod may have"
    own = {"name": "own", "mountPath": "/dev/shm"}
    _, container = pod(volumeMounts=[own])
    assert [each for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm"] == [own]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_namespace_with_pod_security_restricted_admits_a_gangs_pods(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    labels = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")}
    await kubernetes_api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}}, at=AT)
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, has_outposts=False, shared_memory="1Gi")
    order = order_on(nodes)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    (own, _) = (await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/pods"))[0]
    assert own["spec"]["containers"][0]["securityContext"] == RESTRICTED
