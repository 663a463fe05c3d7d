"""Gangs for the adapter's tests: orders, nodes that only the API server knows, and pods played by hand."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest_asyncio

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_deployments.control_plane.simulated_nodes import manifest as simulated_node
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

AT = "test.kube"
PATIENCE_SECONDS = 90.0
RESOURCE = "nvidia.com/gpu"


def places(node: str, *indices: int) -> tuple[str, ...]:
    return tuple(f"{node}/{RESOURCE}/{index}" for index in indices)


def order_on(nodes: Sequence[str], *, gpus: int = 1, attempt: int = 1, **fields: Any) -> LaunchOrder:
    """An order for a gang with one member on each of `nodes`."""
    members = tuple(MemberPlacement(node=node, devices=places(node, *range(gpus))) for node in nodes)
    request = GangRequest(nodes=len(nodes), devices_per_node=gpus, grace_seconds=5.0)
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
        return names

    yield make
    for name in made:
        await kubernetes_api.delete(f"/api/v1/nodes/{name}", at=AT)
