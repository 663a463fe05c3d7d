"""The client against the real API server: what each refusal becomes, and what is safe to repeat."""

import json
from pathlib import Path

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess, NoCluster
from dsec_workers.clusters.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Unreachable,
)
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AT = "test.kube"


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_an_object_goes_through_its_life(kubernetes_api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    created = await kubernetes_api.create(path, config_map("one", a="1"), at=AT)
    with pytest.raises(AlreadyExists):
        await kubernetes_api.create(path, config_map("one"), at=AT)
    applied = await kubernetes_api.apply(f"{path}/one", config_map("one", b="2"), owner="dsec", at=AT)
    assert applied["data"] == {"a": "1", "b": "2"}, "apply owns only its own fields"
    merged = await kubernetes_api.merge(f"{path}/one", {"data": {"a": None}}, at=AT)
    assert merged["data"] == {"b": "2"}
    with pytest.raises(Conflict):
        await kubernetes_api.delete(f"{path}/one", uid="00000000-0000-0000-0000-000000000000", at=AT)
    await kubernetes_api.delete(f"{path}/one", uid=created["metadata"]["uid"], at=AT)
    await kubernetes_api.delete(f"{path}/one", at=AT)  # gone already: no error
    with pytest.raises(NotFound, match='configmaps "one" not found'):
        await kubernetes_api.get(f"{path}/one")


async def test_a_refusal_has_the_api_servers_own_words_and_the_field(kubernetes_api: Api, namespace: str) -> None:
    pod = {"containers": [{"name": "UPPER", "image": "i"}], "restartPolicy": "Never"}
    job = {"metadata": {"name": "bad"}, "spec": {"template": {"spec": pod}}}
    with pytest.raises(Refused, match=r"spec\.template\.spec\.containers\[0\]\.name"):
        await kubernetes_api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, at=AT)


async def test_a_namespace_that_does_not_exist_is_named(kubernetes_api: Api) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await kubernetes_api.create("/api/v1/namespaces/nowhere/configmaps", config_map("one"), at=AT)


async def test_a_dry_run_creates_nothing(kubernetes_api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    await kubernetes_api.create(path, config_map("dry"), at=AT, dry_run=True)
    with pytest.raises(NotFound):
        await kubernetes_api.get(f"{path}/dry")


async def test_a_long_list_comes_whole_page_by_page(kubernetes_api: Api, namespace: str, monkeypatch: object) -> None:
    from dsec_workers.clusters.kubernetes import api as module

    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for index in range(7):
        body = {**config_map(f"n{index}"), "metadata": {"name": f"n{index}", "labels": {"page": "yes"}}}
        await kubernetes_api.create(path, body, at=AT)
    monkeypatch.setattr(module, "PAGE", 3)  # type: ignore[attr-defined]
    items, version = await kubernetes_api.list(path, labels="page=yes")
    assert [item["metadata"]["name"] for item in items] == [f"n{index}" for index in range(7)]
    assert version


async def test_wrong_credentials_are_told_in_one_line(kubernetes_api: Api) -> None:
    kubernetes_api._client.configuration.api_key["BearerToken"] = "Bearer wrong"
    with pytest.raises(Forbidden, match="renew the token or the kubeconfig"):
        await kubernetes_api.get("/api/v1/namespaces/default")


async def test_no_cluster_at_all_names_what_was_tried(tmp_path: object) -> None:
    with pytest.raises(NoCluster, match="cannot be used"):
        await Api.connect(ClusterAccess(kubeconfig=f"{tmp_path}/none"))


async def test_a_cluster_that_does_not_answer_is_named(kubernetes: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    api = await Api.connect(ClusterAccess(kubeconfig=str(tmp_path / "kubeconfig")))
    cluster = KubernetesCluster(api, KubernetesSettings(pool="p"), clock=SystemClock())
    with pytest.raises(Unreachable, match=r"the API server at https://127\.0\.0\.1:9 does not answer"):
        await cluster.prepare()
    await cluster.close()
