"""Waiting until a gang's places are free, on a cluster where thousands of pods may leave meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.resources import quantity
from dsec_workers.clusters.kubernetes.room import until_free
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import GangKey, LaunchOrder
from tests.workers.clusters.kubernetes.conftest import order_on
from tests.workers.clusters.kubernetes.test_node_model import GPU, node
from tests.workers.clusters.kubernetes.test_occupancy import container, pod

NODES = [f"n{number}" for number in range(50)]


class Counting(Supply):
    """It counts how often somebody asks what a place lacks."""

    asked = 0

    def lacking(self, key: GangKey, name: str, needs: Any) -> str | None:
        self.asked += 1
        return super().lacking(key, name, needs)


def leaving(name: str) -> dict[str, Any]:
    return pod(container(gpus=4), node=name, name=f"on-{name}")


def full() -> Counting:
    """Every node's cards are another's, who is leaving."""
    supply = Counting(KubernetesSettings(pool="gpus"), clock=SystemClock())
    for name in NODES:
        supply.node_changed(None, node(name))
        supply.pod_changed(None, leaving(name))
    return supply


async def wait_for(
    order: LaunchOrder, supply: Supply, changed: asyncio.Event, overdrawn: Callable[[], str | None]
) -> None:
    members = dict(enumerate(order.placement.members))
    view = GangView(
        key=order.key, namespace="x", members=members, count=len(members), created_at=SystemClock().now(),
        start_timeout_seconds=order.start_timeout_seconds, grace_seconds=1.0,
    )  # fmt: skip
    needs = [{GPU: quantity(1)} for _ in members]
    await until_free(order, view, needs, supply=supply, overdrawn=overdrawn, changed=changed, clock=SystemClock())


async def looked() -> None:
    """Let whoever was woken look."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("leave", [NODES, NODES[::-1]], ids=["first to last", "last to first"])
async def test_a_gang_for_which_many_leave_looks_at_few_places_each_time_and_starts_when_the_last_has_left(
    leave: list[str],
) -> None:
    supply, changed = full(), asyncio.Event()
    waits = asyncio.create_task(wait_for(order_on(NODES), supply, changed, lambda: None))
    await asyncio.sleep(0)
    for name in leave:
        assert not waits.done(), f"{name} is not free yet"
        supply.pod_changed(leaving(name), None)
        changed.set()
        await looked()
    await waits
    assert supply.asked <= 4 * len(NODES), "not each place at each change"


async def test_a_place_that_was_free_and_is_taken_again_meanwhile_is_seen_before_anything_is_made() -> None:
    supply, changed = full(), asyncio.Event()
    supply.pod_changed(leaving("n0"), None)
    waits = asyncio.create_task(wait_for(order_on(["n0", "n1"]), supply, changed, lambda: None))
    await looked()
    supply.pod_changed(None, leaving("n0"))
    supply.pod_changed(leaving("n1"), None)
    changed.set()
    await looked()
    assert not waits.done(), "somebody took the first place back"
    supply.pod_changed(leaving("n0"), None)
    changed.set()
    await waits


async def test_a_quota_is_asked_only_once_every_place_is_free() -> None:
    supply, asked = full(), []
    order = order_on(NODES[:3], start_timeout_seconds=0.0)
    with pytest.raises(ClusterError, match=f"node {NODES[0]} has 0"):
        await wait_for(order, supply, asyncio.Event(), lambda: asked.append("asked"))
    assert not asked
    for name in NODES[:3]:
        supply.pod_changed(leaving(name), None)
    with pytest.raises(ClusterError, match="the quota is full"):
        await wait_for(order, supply, asyncio.Event(), lambda: "the quota is full")
