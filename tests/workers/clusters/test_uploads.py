"""Snapshots leave after the devices have: the real uploader, the real spool, in a gang."""

import asyncio
import os
import signal

import pytest

from dsec_blocks.gateways import processes
from dsec_workers.clusters.protocol import Committed, DevicesReleased, Gone
from tests.workers.clusters.conftest import Desk, notice

pytestmark = pytest.mark.slow

TRAIN = """
import numpy
from dsec_blocks import run as the_run
checkpoint = the_run.checkpoints(os.environ["STORE"])
state = {"weights": numpy.arange(4.0)}
print("restored", checkpoint.restore(state) is not None, checkpoint.step, flush=True)
"""


async def test_a_snapshot_is_committed_and_told_before_the_gang_is_gone(desk: Desk) -> None:
    store = desk.scripts / "store"
    store.mkdir()
    order = desk.order(TRAIN + "checkpoint.save(7, state)\n", env={"STORE": str(store), "DSEC_FRESH_START": "1"})
    gone = await desk.run(order)
    assert gone.flow_exit == 0, desk.log(order.key)
    kinds = [type(event) for event in desk.told[order.key]]
    assert kinds.index(Committed) < kinds.index(Gone)
    assert gone.last_commit_step == 7
    assert (desk.directory(order.key).spool / "closed").exists()
    assert await desk.is_cleared(order.key)


async def test_a_snapshot_whose_writer_died_before_telling_of_it_is_committed_too(desk: Desk) -> None:
    store = desk.scripts / "store"
    store.mkdir()
    env = {"STORE": str(store), "DSEC_FRESH_START": "1", "DSEC_FAULT": "checkpoint.spool.write:kill_after"}
    gone = await desk.run(desk.order(TRAIN + "checkpoint.save(7, state)\n", env=env))
    assert gone.flow_exit == -signal.SIGKILL
    assert gone.last_commit_step == 7


async def test_a_spool_that_cannot_be_closed_at_once_loses_no_snapshot(desk: Desk) -> None:
    store = desk.scripts / "store"
    store.mkdir()
    env = {"STORE": str(store), "DSEC_FRESH_START": "1", "DSEC_FAULT": "supervisor.spool.close:error:1"}
    order = desk.order(TRAIN + "checkpoint.save(7, state)\n", env=env)
    gone = await desk.run(order)
    assert gone.flow_exit == 0 and gone.last_commit_step == 7
    assert "could not be closed, trying again" in desk.log(order.key, "supervisor")
    assert await desk.is_cleared(order.key)


async def test_a_snapshot_waits_for_an_uploader_that_cannot_be_started_and_fails_no_run(desk: Desk) -> None:
    store = desk.scripts / "store"
    store.mkdir()
    env = {"STORE": str(store), "DSEC_FRESH_START": "1", "DSEC_FAULT": "supervisor.uploader.fork:error:1"}
    order = desk.order(TRAIN + "checkpoint.save(7, state)\n", env=env)
    gone = await desk.run(order)
    assert gone.flow_exit == 0, desk.log(order.key)
    assert gone.last_commit_step == 7
    assert "the uploader could not be started, trying again" in desk.log(order.key, "supervisor")


async def test_a_killed_uploader_is_started_again_and_finishes(desk: Desk) -> None:
    spooling = desk.script('channel.call("spooled", rank=0, step=0, path="", started_at=0.0)')
    gate = desk.scripts / "gate"
    order = desk.order(command=f"$PYTHON {spooling}; echo spooled; while [ ! -e {gate} ]; do sleep 0.05; done")
    supervisor = (await desk.cluster.launch(order))["process"]["pid"]
    await desk.said(order.key, "spooled")
    first = uploader_of(supervisor)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(60.0):
        while uploader_of(supervisor) in (None, first):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    gate.touch()
    assert (await desk.gone(order.key)).flow_exit == 0
    assert await desk.is_cleared(order.key)


def uploader_of(supervisor: int) -> int | None:
    """The supervisor's child that leads a session of its own."""
    table = [row for row in processes.processes() if row.parent == supervisor and not row.is_zombie]
    return next((row.pid for row in table if row.session == row.pid), None)


async def test_stop_gives_an_unfinished_upload_up(desk: Desk) -> None:
    order = desk.order(
        'channel.call("spooled", rank=0, step=0, path="", started_at=0.0)\nprint("up", flush=True)\nwait_for_notice()\n'
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    await desk.cluster.notify(order.key, notice(30))
    await desk.until(order.key, DevicesReleased)
    await desk.cluster.stop(order.key, 0.2)
    await desk.gone(order.key)
    assert await desk.is_cleared(order.key)
