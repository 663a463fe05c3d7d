"""The client against the real API server: what each refusal becomes, and what is safe to repeat."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes import api as module
from dsec_workers.clusters.kubernetes.api import Api, pause_after
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess, NoCluster
from dsec_workers.clusters.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    NotFound,
    Refused,
    Unreachable,
)
from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from tests.fixtures.slow_api import Refusal, SlowApi

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


async def test_a_long_list_comes_whole_page_by_page(
    kubernetes_api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for index in range(7):
        body = {**config_map(f"n{index}"), "metadata": {"name": f"n{index}", "labels": {"page": "yes"}}}
        await kubernetes_api.create(path, body, at=AT)
    monkeypatch.setattr(module, "PAGE", 3)
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


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest_asyncio.fixture
async def through(slow_api: SlowApi, registry: CollectorRegistry) -> AsyncIterator[Api]:
    """A client that goes through the door."""
    metrics = KubernetesMetrics("gpus", registry)
    async with await Api.connect(ClusterAccess(kubeconfig=slow_api.kubeconfig), metrics=metrics) as api:
        yield api


def expired(*, times: int) -> list[Refusal]:
    words = "The provided continue parameter is too old to display a consistent list result."
    return [
        Refusal(fits=lambda request: "continue" in request.query, status=410, reason="Expired", message=words)
        for _ in range(times)
    ]


async def test_a_list_whose_continuation_has_expired_is_begun_again(
    through: Api, slow_api: SlowApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for index in range(5):
        body = {**config_map(f"n{index}"), "metadata": {"name": f"n{index}", "labels": {"page": "yes"}}}
        await through.create(path, body, at=AT)
    monkeypatch.setattr(module, "PAGE", 2)
    slow_api.refusals.extend(expired(times=1))
    items, version = await through.list(path, labels="page=yes")
    assert [item["metadata"]["name"] for item in items] == [f"n{index}" for index in range(5)], "each one once"
    assert version and not slow_api.refusals
    slow_api.refusals.extend(expired(times=module.LISTS))
    with pytest.raises(Expired, match="too old to display"):
        await through.list(path, labels="page=yes")


async def test_an_api_server_that_asks_for_a_pause_gets_at_least_that_and_both_are_counted(
    through: Api, slow_api: SlowApi, registry: CollectorRegistry, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def at_once(_turn: int, *, asked: float) -> float:
        pauses.append(asked)
        return 0.0

    monkeypatch.setattr(module, "pause_after", at_once)
    slow_api.refusals.append(
        Refusal(
            fits=lambda request: request.method == "POST",
            status=429,
            reason="TooManyRequests",
            message="please try again later",
            headers={"Retry-After": "7"},
        )
    )
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    await through.create(path, config_map("one"), at=AT)
    assert pauses == [7.0]
    assert [method for method, asked in slow_api.requests if asked == path] == ["POST", "POST"]
    with pytest.raises(AlreadyExists):
        await through.create(path, config_map("one"), at=AT)
    counted = {
        outcome: registry.get_sample_value(
            "dsec_kubernetes_requests_total", {"pool": "gpus", "method": "POST", "outcome": outcome}
        )
        for outcome in ("ok", "throttled", "refused", "unavailable")
    }
    assert counted == {"ok": 1.0, "throttled": 1.0, "refused": 1.0, "unavailable": None}
    assert registry.get_sample_value("dsec_kubernetes_retry_after_seconds_total", {"pool": "gpus"}) == 7.0


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_pause_is_never_shorter_than_what_was_asked_for_and_has_an_end(turn: int) -> None:
    pauses = [pause_after(turn, asked=7.0) for _ in range(20)]
    assert min(pauses) > 7.0 and max(pauses) <= 15.0
    assert len(set(pauses)) > 1, "those that were refused together come back one by one"


async def test_a_watch_that_says_nothing_for_too_long_is_taken_for_dead(
    through: Api, slow_api: SlowApi, kubernetes_api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    _, version = await through.list(path)
    slow_api.stall_watches()
    await kubernetes_api.create(path, config_map("unheard"), at=AT)
    with pytest.raises(Unreachable, match=f"watch {path}"):
        async for _ in through.watch(path, since=version, quiet_seconds=0.5):
            raise AssertionError("the watch was to say nothing")
    slow_api.resume_watches()
    async for kind, item in through.watch(path, since=version, quiet_seconds=30.0):
        assert (kind, item["metadata"]["name"]) == ("ADDED", "unheard")
        break


@pytest.mark.parametrize(
    ("variables", "looked_at"),
    [
        ({}, False),
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, True),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}, False),
    ],
)
async def test_the_environment_is_looked_at_for_each_request_only_where_it_names_a_proxy_for_the_api_server(
    kubernetes: ControlPlane, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], looked_at: bool
) -> None:
    for name in ("HTTPS_PROXY", "NO_PROXY"):
        for spelt in (name, name.lower()):
            monkeypatch.delenv(spelt, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with await Api.connect(ClusterAccess(kubeconfig=kubernetes.kubeconfig)) as api:
        assert api._session.trust_env is looked_at, "each look costs two threads"
        if looked_at:
            with pytest.raises(Unreachable):
                monkeypatch.setattr(module, "TRIES", 1)
                await api.get("/version")
        else:
            assert (await api.get("/version"))["major"]
