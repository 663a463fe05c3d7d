"""A gang's longest run time is measured where it runs: whoever watches it, and whatever their clocks say."""

import asyncio
import dataclasses

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.protocol import Gone, LaunchOrder, Started
from tests.workers.clusters.conftest import Desk

pytestmark = pytest.mark.slow


def _limited(order: LaunchOrder, seconds: float) -> LaunchOrder:
    request = dataclasses.replace(order.request, max_runtime_seconds=seconds, grace_seconds=1.0)
    return dataclasses.replace(order, request=request)


async def test_a_gang_is_stopped_at_its_longest_run_time_though_nobody_watches_it(desk: Desk) -> None:
    """Its worker may be dead, or stopped; a successor hears why it ended."""
    order = _limited(desk.order(command="trap '' TERM; while :; do sleep 0.1; done", devices=[["limit-0"]]), 1.0)
    worker = LocalCluster(home=desk.home, nodes=(), clock=SystemClock())
    await worker.launch(order)
    await worker.close()
    async with asyncio.timeout(20):
        while not (ends := await _ends(desk, order)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [(gone.timed_out, gone.flow_exit) for gone in ends] == [(True, -9)]
    assert await desk.is_cleared(order.key)


async def _ends(desk: Desk, order: LaunchOrder) -> list[Gone]:
    """What a successor finds when it comes."""
    found = {gang.key: gang for gang in await desk.cluster.adopt()}[order.key]
    return [event for event in found.events if isinstance(event, Gone)]


async def test_one_that_ends_in_time_has_not_timed_out_and_waiting_for_devices_is_no_run_time(desk: Desk) -> None:
    holder = desk.order(command="sleep 30", devices=[["limit-1"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    order = _limited(desk.order(command="exit 0", devices=[["limit-1"]], hold_start=True), 1.0)
    await desk.cluster.launch(order)
    await asyncio.sleep(1.5)  # longer than its limit
    await desk.cluster.stop(holder.key, 0.0)
    gone = await desk.gone(order.key)
    assert (gone.timed_out, gone.flow_exit) == (False, 0)
