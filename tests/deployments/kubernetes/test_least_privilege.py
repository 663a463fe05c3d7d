"""What the chart lets the worker do is enough, and all of it is used: gangs are driven with the account that the chart
makes, and what is asked of the API server meanwhile is compared with what the roles of that account allow.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.kubernetes import applying
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import Gone, LaunchOrder, Started
from tests.deployments.kubernetes.conftest import Rights, rendered, stated_rights, token_of
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.workers.clusters.kubernetes.conftest import OpenCluster, Told, order_on, until
from tests.workers.clusters.kubernetes.outposts import script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FOR_ACCOUNTS = ("ServiceAccount", "Secret", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "PriorityClass")


VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Recorded(Api):
    """A client that remembers the right that each of its requests needs: of the whole cluster, and in a namespace."""

    asked: ClassVar[dict[str, Rights]]

    async def _once(self, method: str, path: str, **rest: Any) -> Object:
        self._remember(method, path)
        return await super()._once(method, path, **rest)

    async def watch(self, path: str, **rest: Any) -> AsyncIterator[tuple[str, Object]]:
        self._remember("WATCH", path)
        async for event in super().watch(path, **rest):
            yield event

    def _remember(self, method: str, path: str) -> None:
        _, api, *rest = path.split("/")
        group, rest = ("", rest[1:]) if api == "api" else (rest[0], rest[2:])
        is_inside = len(rest) > 2 and rest[0] == "namespaces"
        resource, *name = rest[2:] if is_inside else rest
        assert len(name) < 2, f"{path} is of a part of an object: say here how that is called"
        verb = VERBS.get(method) or ("watch" if method == "WATCH" else "get" if name else "list")
        what = (group, f"{resource}/{name[0]}" if resource == "secrets" and name else resource)
        self.asked["Role" if is_inside else "ClusterRole"].setdefault(what, set()).add(verb)


@pytest_asyncio.fixture
async def as_the_worker(
    kubernetes_api: Api, kubernetes: ControlPlane, cleared: str, tmp_path: Path
) -> AsyncIterator[OpenCluster]:
    """Open the adapter with the account that the chart makes for the worker."""
    await applying.apply(kubernetes_api, [item for item in rendered(cleared) if item["kind"] in FOR_ACCOUNTS])
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": await token_of(kubernetes_api, cleared, "dsec-worker")}
    (tmp_path / "worker.kubeconfig").write_text(json.dumps(config))
    opened: list[tuple[Told, asyncio.Task[None]]] = []
    Recorded.asked = {"ClusterRole": {}, "Role": {}}

    async def open_one(nodes: Sequence[str]) -> Told:
        settings = KubernetesSettings(
            pool=cleared,
            namespace=cleared,
            node_selector=f"kubernetes.io/hostname in ({','.join(nodes)})",
            secret="dsec-gangs",
            service_account="dsec-member",
            priority_class="dsec-gang",
            upload_seconds=5,
        )
        api = await Recorded.connect(ClusterAccess(kubeconfig=str(tmp_path / "worker.kubeconfig")))
        told = Told(KubernetesCluster(api, settings, clock=SystemClock()))
        await told.cluster.prepare()
        opened.append((told, asyncio.create_task(told.listen())))
        return told

    yield open_one
    for told, listening in opened:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await told.close()


async def refused_by_a_quota(api: Api, told: Told, namespace: str, order: LaunchOrder) -> None:
    """A launch of `order` that a quota refuses, which reaches this worker late."""
    for mirror in told.cluster._namespaces._mirrors[namespace]:
        await mirror.stop()
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    body = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    await api.create(path, body, at="test.quota")

    async def counted() -> bool:
        return bool((await api.get(f"{path}/none")).get("status", {}).get("hard"))

    await until(counted)
    await told.cluster.launch(order)
    gone = await told.until(order.key, Gone)
    assert "exceeded quota" in (gone.start_failure or "")
    await told.cluster.forget(order.key)


async def test_the_worker_s_own_account_may_do_all_that_a_gang_s_life_takes_and_nothing_else(
    kubernetes_api: Api, as_the_worker: OpenCluster, cleared: str, process_nodes: ProcessNodes, tmp_path: Path
) -> None:
    nodes = [f"{cleared}-a", f"{cleared}-b"]
    for name in nodes:
        process_nodes.add(name, gpus=2)
    first = await as_the_worker(nodes)
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    order = replace(
        order_on(nodes),
        command=script(tmp_path, "while True: time.sleep(0.05)"),
        env={"PYTHONPATH": path, "PREFECT_API_URL": "http://prefect.example/api"},
    )
    await first.cluster.launch(order)
    await first.until(order.key, Started)
    pods, _ = await kubernetes_api.list(f"/api/v1/namespaces/{cleared}/pods")
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"dsec-member"}
    assert {(pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) for pod in pods} == {(100000, "Never")}
    secret = await kubernetes_api.get(f"/api/v1/namespaces/{cleared}/secrets/dsec-gangs")
    assert {"DSEC_CHANNEL_KEY", "PREFECT_API_URL"} <= set(secret["data"]), "the worker has filled it"
    await first.close()
    second = await as_the_worker(nodes)
    (observed,) = await second.cluster.adopt()
    assert observed.key == order.key
    await second.cluster.launch(order)  # its predecessor may have died before it wrote down that it did
    await refused_by_a_quota(kubernetes_api, second, cleared, order_on(nodes[:1]))
    await second.cluster.stop(order.key, 1.0)
    await second.until(order.key, Gone)
    await second.cluster.forget(order.key)

    async def nothing() -> bool:
        left = [
            await kubernetes_api.list(f"/api/v1/namespaces/{cleared}/pods"),
            await kubernetes_api.list(f"/apis/batch/v1/namespaces/{cleared}/jobs"),
        ]
        return not any(items for items, _ in left)

    await until(nothing)
    stated = rendered(cleared)
    assert Recorded.asked == {kind: stated_rights(stated, kind) for kind in ("ClusterRole", "Role")}, (
        "what no code asks for is nobody's right: say so in accounts.yaml"
    )
