"""The local copy follows the real API server, through its absence too."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane import plane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import Expired
from dsec_workers.clusters.kubernetes.mirror import Mirror

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
        assert (namespace, "old") in mirror.objects
        await kubernetes_api.create(path, {"metadata": {"name": "new", "labels": {"mine": "yes"}}}, at=AT)
        await kubernetes_api.create(path, {"metadata": {"name": "other"}}, at=AT)
        await until(lambda: (namespace, "new") in mirror.objects)
        await kubernetes_api.delete(f"{path}/old", at=AT)
        await until(lambda: (namespace, "old") not in mirror.objects)
        assert mirror.is_current
        assert seen == [(None, "old"), (None, "new"), ("old", None)]
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
