"""Point × mode over what the worker does to a cluster: wherever it is struck, its successor clears up what is left.

The pods run in name only, since none of these points is in a pod; what is in pods: `tests/crash/test_outposts.py`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsec_blocks.gateways.faults import ENV_FAULT_LOG, MODES
from dsec_blocks.model.devices import Health
from dsec_blocks.model.names import ENV_FAULT
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.local.layout import order_to_json
from dsec_workers.clusters.protocol import Gone, LaunchOrder, Started
from tests.crash import cases
from tests.workers.clusters.kubernetes.conftest import MakeNodes, OpenCluster, Told, order_on, until
from tests.workers.clusters.kubernetes.test_cluster import IN_NAME, jobs, pods, until_nothing_is_left

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIFE = """
import asyncio, json, sys, time
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.local.layout import order_from_json
from dsec_workers.clusters.protocol import Gone, Started

async def main(kubeconfig, namespace, *orders):
    api = await Api.connect(ClusterAccess(kubeconfig=kubeconfig))
    settings = KubernetesSettings(pool=namespace, namespace=namespace, has_outposts=False, upload_seconds=5)
    cluster = KubernetesCluster(api, settings, clock=SystemClock())
    await cluster.prepare()
    first, second = (order_from_json(json.loads(order)) for order in orders)
    waiting = {(order.key, kind) for order in (first, second) for kind in (Started, Gone)}
    heard = asyncio.Event()

    async def listen():
        while True:
            async for event in cluster.events():
                waiting.discard((event.key, type(event)))
                heard.set()

    async def until(key, kind):
        while (key, kind) in waiting:
            heard.clear()
            await heard.wait()

    listening = asyncio.create_task(listen())
    for order in (first, second):
        await cluster.launch(order)
        await until(order.key, Started)
    await cluster.withdraw(first.key)
    notice = Notice(kind=NoticeKind.EVICT, reason="a test", deadline=time.time() + 60, attempt=1)
    await cluster.notify(first.key, notice)
    await cluster.stop(second.key, 0.0)
    for order in (first, second):
        await until(order.key, Gone)
        await cluster.forget(order.key)
    listening.cancel()
    await cluster.close()

asyncio.run(main(*sys.argv[1:]))
"""
"""A worker's whole doing in one breath: two launches, a notice taken back, a notice, a stop, two ends."""


def points() -> list[str]:
    told = cases.told_of_points().items()
    return sorted(name for name, of in told if of["scope"] == "kubernetes" and not name.startswith("outpost."))


def matrix() -> list[tuple[str, str]]:
    return [(point, mode) for point in points() for mode in MODES]


def todays() -> list[tuple[str, str]]:
    """Three of them, others tomorrow: all within two weeks."""
    every = matrix()
    return every[cases.seed() % 15 :: 15]


def orders(nodes: list[str]) -> list[LaunchOrder]:
    """Two gangs; the second brings another address of Prefect's, so that the namespace's Secret changes."""
    return [order_on(nodes, env={"PREFECT_API_URL": f"http://{name}.example/api"}) for name in ("one", "two")]


def worker(
    kubernetes: ControlPlane, namespace: str, given: list[LaunchOrder], **environment: str
) -> "subprocess.Popen[bytes]":
    words = [json.dumps(order_to_json(order)) for order in given]
    return subprocess.Popen(
        [sys.executable, "-c", LIFE, kubernetes.kubeconfig, namespace, *words],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def is_stopped(child: "subprocess.Popen[bytes]") -> bool:
    stat = Path(f"/proc/{child.pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] == "T"


async def clear(told: Told, api: Api, namespace: str) -> None:
    """What a successor does with gangs that its ledger wants gone: adopt, stop, and forget them, until none is left."""

    async def nothing_is_left() -> bool:
        for gang in await told.cluster.adopt():
            await told.cluster.stop(gang.key, 0.0)
            await told.until(gang.key, Gone)
            await told.cluster.forget(gang.key)
        return not await jobs(api, namespace) and not await pods(api, namespace)

    await until(nothing_is_left)


@dataclass
class Case:
    """What a strike needs of a test's fixtures."""

    kubernetes: ControlPlane
    api: Api
    namespace: str
    make_nodes: MakeNodes
    open_cluster: OpenCluster

    async def strike(self, point: str, mode: str) -> None:
        nodes = await self.make_nodes(2)
        child = worker(self.kubernetes, self.namespace, orders(nodes), **{ENV_FAULT: f"{point}:{mode}:1"})
        try:
            if mode == "stall":  # its successor does not wait for it, and it wakes up as a zombie
                await until(lambda: is_stopped(child) or child.poll() is not None)
                assert child.poll() is None, "it ended without reaching the point"
                successor = await self.open_cluster(nodes, **IN_NAME)
                await clear(successor, self.api, self.namespace)
                child.send_signal(signal.SIGCONT)
                await asyncio.to_thread(child.wait, 120)
            else:
                await asyncio.to_thread(child.wait, 120)
                said = child.stderr.read().decode() if child.stderr is not None else ""
                assert (child.returncode == -signal.SIGKILL) is mode.startswith("kill"), said
                successor = await self.open_cluster(nodes, **IN_NAME)
            await clear(successor, self.api, self.namespace)
            assert {d.health for node in await successor.cluster.nodes() for d in node.devices} == {Health.HEALTHY}
            again = order_on(nodes, gpus=8)
            await successor.cluster.launch(again)
            await successor.until(again.key, Started)
            await clear(successor, self.api, self.namespace)
        finally:
            child.kill()
            child.wait()


@pytest.fixture
def case(
    kubernetes: ControlPlane, kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> Case:
    return Case(kubernetes, kubernetes_api, namespace, make_nodes, open_cluster)


async def test_without_a_fault_every_point_is_passed_and_nothing_is_left(case: Case, tmp_path: Path) -> None:
    nodes = await case.make_nodes(2)
    child = worker(case.kubernetes, case.namespace, orders(nodes), **{ENV_FAULT_LOG: str(tmp_path / "passed")})
    assert await asyncio.to_thread(child.wait, 120) == 0
    assert set(points()) <= set((tmp_path / "passed").read_text().split())
    await until_nothing_is_left(case.api, case.namespace)


@pytest.mark.parametrize(("point", "mode"), todays())
async def test_matrix(point: str, mode: str, case: Case) -> None:
    await case.strike(point, mode)


@pytest.mark.long
@pytest.mark.parametrize(("point", "mode"), [each for each in matrix() if each not in todays()])
async def test_rest_of_the_matrix(point: str, mode: str, case: Case) -> None:
    await case.strike(point, mode)
