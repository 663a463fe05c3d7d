"""The local copy follows the real API server, through its absence too."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane import plane
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.errors import Expired
from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics
from dsec_workers.clusters.kubernetes.mirror import DEAD_SECONDS, Mirror
from tests.fixtures.slow_api import Refusal, SlowApi
from tests.workers.clusters.kubernetes.conftest import Ahead

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AT = "test.kube"


async def until(what: Callable[[], Any], *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_mirror_sees_what_is_there_what_comes_and_what_goes(kubernetes_api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    await kubernetes_api.create(path, {"metadata": {"name": "old", "labels": {"mine": "yes"}}}, at=AT)
    seen: list[tuple[str | None, str | None]] = []
    name = lambda item: item["metadata"]["name"] if item else None  # noqa: E731
    mirror = Mirror(kubernetes_api, path, labels="mine=yes", on_change=lambda a, b: seen.append((name(a), name(b))))
    await mirror.start()
    try:
        assert "managedFields" not in mirror.objects[namespace, "old"]["metadata"]
        await kubernetes_api.create(path, {"metadata": {"name": "new", "labels": {"mine": "yes"}}}, at=AT)
        await kubernetes_api.create(path, {"metadata": {"name": "other"}}, at=AT)
        await until(lambda: (namespace, "new") in mirror.objects)
        await kubernetes_api.delete(f"{path}/old", at=AT)
        await until(lambda: (namespace, "old") not in mirror.objects)
        assert mirror.is_current
        assert seen == [(None, "old"), (None, "new"), ("old", None)]
        sent = await kubernetes_api.get(f"{path}/new")
        assert sent["metadata"].pop("managedFields"), "half of an object of ours, which nobody here asks for"
        assert mirror.objects[namespace, "new"] == {name: sent[name] for name in mirror.objects[namespace, "new"]}
    finally:
        await mirror.stop()


async def test_a_mirror_that_lost_the_api_server_says_so_and_catches_up(
    kubernetes_home: Path, kubernetes_api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    mirror = Mirror(kubernetes_api, path)
    await mirror.start()
    clock = SystemClock()
    try:
        await asyncio.to_thread(plane.stop_part, kubernetes_home, "kube-apiserver", clock=clock)
        await until(lambda: not mirror.is_current)
        before = dict(mirror.objects)
        await asyncio.to_thread(plane.start, kubernetes_home, clock=clock)
        await kubernetes_api.create(path, {"metadata": {"name": "late"}}, at=AT)
        await until(lambda: mirror.is_current and (namespace, "late") in mirror.objects)
        assert before.keys() <= mirror.objects.keys()
    finally:
        await mirror.stop()


async def test_a_version_from_before_a_restart_is_expired_and_the_mirror_lists_again(
    kubernetes_home: Path, kubernetes_api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    mirror = Mirror(kubernetes_api, path)
    await mirror.start()
    await mirror.stop()
    await kubernetes_api.create(path, {"metadata": {"name": "missed"}}, at=AT)
    clock = SystemClock()
    await asyncio.to_thread(plane.stop_part, kubernetes_home, "kube-apiserver", clock=clock)
    await asyncio.to_thread(plane.start, kubernetes_home, clock=clock)
    with pytest.raises(Expired):  # a new server's memory begins when it starts
        async for _ in kubernetes_api.watch(path, since="1"):
            break
    lists = mirror.lists
    mirror._version = "1"
    mirror._task = asyncio.create_task(mirror._follow())
    try:
        await until(lambda: (namespace, "missed") in mirror.objects)
        assert mirror.lists == lists + 1
    finally:
        await mirror.stop()


async def test_an_object_of_more_than_128_kib_does_not_end_the_copy(kubernetes_api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    mirror = Mirror(kubernetes_api, path)
    await mirror.start()
    lists = mirror.lists
    try:
        for name in ("large", "after"):
            body = {"metadata": {"name": name}, "data": {"text": "x" * (900_000 if name == "large" else 1)}}
            await kubernetes_api.create(path, body, at=AT)
        await until(lambda: (namespace, "after") in mirror.objects)
        assert len(mirror.objects[namespace, "large"]["data"]["text"]) == 900_000
        assert mirror.lists == lists, "the watch went on"
    finally:
        await mirror.stop()


async def test_an_object_that_nobody_understands_is_passed_over_and_the_others_are_followed(
    kubernetes_api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    seen: list[str] = []

    def choke(_before: Object | None, after: Object | None) -> None:
        seen.append(after["metadata"]["name"] if after is not None else "")
        if seen[-1] == "odd":
            raise KeyError("spec")

    mirror = Mirror(kubernetes_api, path, on_change=choke)
    await mirror.start()
    lists = mirror.lists
    try:
        for name in ("odd", "next"):
            await kubernetes_api.create(path, {"metadata": {"name": name}}, at=AT)
        await until(lambda: (namespace, "next") in mirror.objects)
        assert seen[-2:] == ["odd", "next"]
        assert mirror.is_current and mirror.lists == lists, "one odd object costs no list of all"
    finally:
        await mirror.stop()


async def test_what_a_copy_goes_through_is_counted_and_forgotten_with_it(slow_api: SlowApi, namespace: str) -> None:
    path, registry = f"/api/v1/namespaces/{namespace}/configmaps", CollectorRegistry()
    labels = {"pool": "gpus", "kind": "configmaps", "namespace": namespace}

    def figure(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"dsec_kubernetes_mirror_{name}", {**labels, **more})

    metrics = KubernetesMetrics("gpus", registry)
    async with await Api.connect(ClusterAccess(kubeconfig=slow_api.kubeconfig), metrics=metrics) as api:
        clock = Ahead()
        mirror = Mirror(api, path, clock=clock)
        assert figure("heard_timestamp_seconds") is None, "a kind that is not there is not missed"
        gone = Refusal(fits=lambda request: "watch" in request.query, status=410, reason="Expired", message="too old")
        away = Refusal(
            fits=lambda request: "watch" in request.query, status=503, reason="ServiceUnavailable", message=""
        )
        slow_api.refusals.extend([gone, away])
        await mirror.start()
        try:
            assert figure("current") == 1.0
            await until(lambda: figure("failures_total", reason="overloaded"))
            assert figure("current") == 0.0
            assert (figure("lists_total"), figure("failures_total", reason="expired")) == (2.0, 1.0)
            await api.create(path, {"metadata": {"name": "one"}}, at=AT)
            await until(lambda: (namespace, "one") in mirror.objects)
            assert figure("current") == 1.0 and (figure("watches_total") or 0) >= 3.0
            heard, clock.seconds = figure("heard_timestamp_seconds") or 0.0, 1000.0
            assert abs(clock.now() - 1000.0 - heard) < 60.0, "in seconds since the epoch"
        finally:
            await mirror.stop()
        assert figure("heard_timestamp_seconds") is None and figure("current") is None, "nobody alerts on it"


async def test_a_copy_that_neither_hears_nor_tries_hangs_and_one_that_hears_again_does_not(
    kubernetes_api: Api, namespace: str
) -> None:
    path, clock = f"/api/v1/namespaces/{namespace}/configmaps", Ahead()
    mirror = Mirror(kubernetes_api, path, clock=clock)
    await mirror.start()
    try:
        assert mirror.hangs() is None
        clock.seconds = DEAD_SECONDS + 1
        why = mirror.hangs()
        assert why is not None and why.startswith(f"{path} has not been followed for 30"), why
        await kubernetes_api.create(path, {"metadata": {"name": "one"}}, at=AT)
        await until(lambda: (namespace, "one") in mirror.objects)
        assert mirror.hangs() is None
    finally:
        await mirror.stop()
