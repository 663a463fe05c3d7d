"""What the chart lets the worker do is enough: the adapter drives gangs with the account it makes, and nothing else."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.kubernetes import applying
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import Gone, Started
from tests.deployments.kubernetes.conftest import rendered, token_of
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.workers.clusters.kubernetes.conftest import OpenCluster, Told, order_on, until
from tests.workers.clusters.kubernetes.outposts import script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FOR_ACCOUNTS = ("ServiceAccount", "Secret", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "PriorityClass")


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
        api = await Api.connect(ClusterAccess(kubeconfig=str(tmp_path / "worker.kubeconfig")))
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


async def test_a_gang_is_launched_adopted_stopped_and_forgotten_with_the_worker_s_own_account(
    kubernetes_api: Api, as_the_worker: OpenCluster, cleared: str, process_nodes: ProcessNodes, tmp_path: Path
) -> None:
    nodes = [f"{cleared}-a", f"{cleared}-b"]
    for name in nodes:
        process_nodes.add(name, gpus=1)
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
