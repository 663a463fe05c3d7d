"""Gangs for the adapter's tests: orders, nodes that only the API server knows, and pods played by hand."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.control_plane.simulated_nodes import manifest as simulated_node
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.node_model import why_closed
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import ClusterEvent, GangKey, LaunchOrder, Progressed
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer
from tests.integration.site import Site

AT = "test.kube"
PATIENCE_SECONDS = 90.0
GRACE_SECONDS = 120.0
"""Of gangs in these tests: what a snapshot may take on a machine that does much else."""
RESOURCE = "nvidia.com/gpu"


def places(node: str, *indices: int) -> tuple[str, ...]:
    return tuple(f"{node}/{RESOURCE}/{index}" for index in indices)


def order_on(nodes: Sequence[str], *, gpus: int = 1, attempt: int = 1, **fields: Any) -> LaunchOrder:
    """An order for a gang with one member on each of `nodes`."""
    members = tuple(MemberPlacement(node=node, devices=places(node, *range(gpus))) for node in nodes)
    request = GangRequest(nodes=len(nodes), devices_per_node=gpus, grace_seconds=GRACE_SECONDS)
    return LaunchOrder(
        key=GangKey(str(uuid4()), attempt),
        name="a-run",
        **{"request": request, "placement": Placement(members=members), "env": {"A": "1"}, **fields},
    )


async def until(found: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `found` returns (or resolves to), once it is true."""
    async with asyncio.timeout(seconds):
        while True:
            result = found()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.05)


@dataclass
class Told:
    """A cluster under test, and what it has told of each gang."""

    cluster: KubernetesCluster
    events: dict[GangKey, list[ClusterEvent]] = field(default_factory=dict)
    surprises: int = 0
    is_closed: bool = False

    async def listen(self) -> None:
        while True:
            async for event in self.cluster.events():
                self.events.setdefault(event.key, []).append(event)
            self.surprises += 1
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """The worker is no more; its gangs are."""
        if not self.is_closed:
            self.is_closed = True
            await self.cluster.close()

    async def until(self, key: GangKey, kind: type[ClusterEvent]) -> Any:
        """The first event of a kind that was told of a gang."""
        return await until(lambda: next((e for e in self.events.get(key, ()) if isinstance(e, kind)), None))

    def kinds(self, key: GangKey) -> list[str]:
        """What was told of a gang, progress left out."""
        return [type(e).__name__ for e in self.events.get(key, ()) if not isinstance(e, Progressed)]


class Ahead(SystemClock):
    """The time, and `seconds` more of it than have passed."""

    seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


OpenCluster = Callable[..., Awaitable[Told]]


@pytest_asyncio.fixture
async def open_cluster(kubernetes: ControlPlane, namespace: str) -> AsyncIterator[OpenCluster]:
    """Open the adapter on this test's namespace and nodes, as a worker does; several are several workers."""
    opened: list[tuple[Told, asyncio.Task[None]]] = []

    async def open_one(nodes: Sequence[str], *, clock: Clock | None = None, **fields: Any) -> Told:
        settings = KubernetesSettings(
            pool=namespace,
            namespace=namespace,
            node_selector=f"kubernetes.io/hostname in ({','.join(nodes)})",
            **{"upload_seconds": 5, **fields},
        )
        api = await Api.connect(ClusterAccess(kubeconfig=kubernetes.kubeconfig))
        told = Told(KubernetesCluster(api, settings, clock=clock or SystemClock()))
        await told.cluster.prepare()
        opened.append((told, asyncio.create_task(told.listen())))
        return told

    yield open_one
    for told, listening in opened:
        for key in list(told.events) if not told.is_closed else ():
            with contextlib.suppress(ClusterError):
                await told.cluster.forget(key)
        listening.cancel()
        await told.close()


MakeNodes = Callable[..., Awaitable[list[str]]]
_numbers = itertools.count(1)


@pytest_asyncio.fixture
async def make_nodes(kubernetes_api: Api) -> AsyncIterator[MakeNodes]:
    """Make `count` nodes: KWOK's, whose pods run in name; or `by_hand`, on which nothing happens by itself."""
    made: list[str] = []

    async def make(count: int = 1, *, by_hand: bool = False, **fields: Any) -> list[str]:
        names = [f"n{next(_numbers)}-{uuid4().hex[:6]}" for _ in range(count)]
        for name in names:
            node = simulated_node(name, **fields)
            if by_hand:
                node["metadata"]["annotations"] = {}
                node["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "ByHand"}]
            await kubernetes_api.create("/api/v1/nodes", node, at=AT)
        made.extend(names)
        for name in names:
            await until(partial(is_open, name))
        return names

    async def is_open(name: str) -> bool:
        return why_closed(await kubernetes_api.get(f"/api/v1/nodes/{name}")) is None

    yield make
    for name in made:
        await kubernetes_api.delete(f"/api/v1/nodes/{name}", at=AT)


@pytest.fixture
def two_nodes(process_nodes: ProcessNodes, namespace: str) -> list[str]:
    """Two nodes with two cards each, whose pods are processes."""
    names = [f"{namespace}-a", f"{namespace}-b"]
    for name in names:
        process_nodes.add(name, gpus=2)
    return names


OpenSite = Callable[..., Site]


@pytest.fixture
def open_site(
    prefect_server: PrefectServer,
    zygote: Zygote | None,
    kubernetes: ControlPlane,
    process_nodes: ProcessNodes,
    namespace: str,
    tmp_path: Path,
) -> Iterator[OpenSite]:
    """Open a pool on `nodes` process nodes (NAMESPACE-a, -b …) with so many cards each; no worker is started."""
    opened: list[Site] = []

    def open_one(nodes: int = 2, *, gpus: int = 2) -> Site:
        names = [f"{namespace}-{letter}" for letter in ascii_lowercase[:nodes]]
        for name in names:
            process_nodes.add(name, gpus=gpus)
        environment = {
            "DSEC_CLUSTER": "kubernetes",
            "KUBECONFIG": kubernetes.kubeconfig,
            "DSEC_NAMESPACE": namespace,
            "DSEC_NODE_SELECTOR": f"kubernetes.io/hostname in ({','.join(names)})",
        }
        opened.append(Site(server=prefect_server, home=tmp_path, environment=environment, zygote=zygote))
        return opened[-1]

    yield open_one
    for site in opened:
        site.close()
