"""The start barrier: user code runs when every member holds its devices, or not at all."""

import asyncio
import time

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.protocol import ClusterEvent, Gone, Progressed, Started
from tests.workers.clusters.conftest import Desk, notice

pytestmark = pytest.mark.slow


async def test_a_gang_starts_runs_and_is_gone_with_its_exit_status(desk: Desk) -> None:
    order = desk.order(command="echo hello; exit 3", devices=[["start-0"], ["start-1"]])
    gone = await desk.run(order)
    assert gone.flow_exit == 3
    assert gone.member_exits == {0: 0, 1: 0}
    assert gone.lost_member is None and gone.start_failure is None
    assert desk.log(order.key) == "hello\n"
    assert [type(event).__name__ for event in desk.told[order.key]] == ["Started", "DevicesReleased", "Gone"]
    assert await desk.is_cleared(order.key)


async def test_a_killed_flow_process_is_told_by_its_signal(desk: Desk) -> None:
    assert (await desk.run(desk.order(command="kill -9 $$"))).flow_exit == -9


async def test_the_environment_is_the_orders_and_nothing_elses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    order = desk.order(command="env", devices=[["env-0", "env-1"], ["env-2", "env-3"]], env={"MINE": "yes"})
    await desk.run(order)
    env = dict(line.split("=", 1) for line in desk.log(order.key).splitlines() if "=" in line)
    assert env["MINE"] == "yes"
    assert env["DSEC_RUN_ID"] == order.key.run_id and env["DSEC_ATTEMPT"] == "1"
    assert env["DSEC_DEVICES"] == "env-0,env-1" and env["DSEC_MEMBER"] == "0"
    assert env["PWD"] == str(desk.directory(order.key).work)
    assert "PYTEST_CURRENT_TEST" not in set(env) - set(order.env)


async def test_user_code_waits_until_every_member_holds_its_devices(desk: Desk) -> None:
    holder = desk.order(command="sleep 30", devices=[["wait-1"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    waiting = desk.order(command="echo ran", devices=[["wait-0"], ["wait-1"]], hold_start=True)
    await desk.cluster.launch(waiting)
    await asyncio.sleep(0.5)
    assert desk.holds("wait-0")
    assert desk.log(waiting.key) == ""
    assert waiting.key not in desk.told
    await desk.cluster.stop(holder.key, 0.0)
    gone = await desk.gone(waiting.key)
    assert gone.flow_exit == 0
    assert desk.log(waiting.key) == "ran\n"


async def test_the_hand_over_from_a_leaving_gang_needs_no_message_and_no_second(desk: Desk) -> None:
    victim = desk.order("wait_for_notice(); print(time.time())", devices=[["hand-0"], ["hand-1"]])
    await desk.cluster.launch(victim)
    await desk.until(victim.key, Started)
    heir = desk.order(command="date +%s.%N", devices=[["hand-0"], ["hand-1"]], hold_start=True)
    await desk.cluster.launch(heir)
    await asyncio.sleep(0.3)
    await desk.cluster.notify(victim.key, notice(10))
    await desk.gone(heir.key)
    latency = float(desk.log(heir.key)) - float(desk.log(victim.key))
    print(f"hand-over {latency * 1000:.0f} ms")
    assert latency < 0.5


async def test_a_device_that_is_held_twice_fails_the_whole_launch_and_names_it(desk: Desk) -> None:
    holder = desk.order(command="sleep 30", devices=[["twice-1"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    second = desk.order(command="echo ran", devices=[["twice-0"], ["twice-1"]])
    gone = await desk.run(second)
    assert gone.start_failure == "device twice-1 on node node-1 is held by another process"
    assert gone.flow_exit is None
    assert desk.log(second.key) == ""
    assert not desk.holds("twice-0") and desk.holds("twice-1")
    assert Started not in {type(event) for event in desk.told[second.key]}


async def test_a_barrier_that_does_not_open_in_time_fails_the_launch_whole(desk: Desk) -> None:
    holder = desk.order(command="sleep 30", devices=[["late-0"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    late = desk.order(command="echo ran", devices=[["late-0"], ["late-1"]], hold_start=True, start_timeout_seconds=0.5)
    gone = await desk.run(late)
    assert gone.start_failure == "member 0 did not get its devices within 0.5 s"
    assert desk.log(late.key) == ""
    assert not desk.holds("late-1")


async def test_a_notice_before_the_barrier_ends_the_launch_at_once(desk: Desk) -> None:
    holder = desk.order(command="sleep 30", devices=[["early-0"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    waiting = desk.order(command="echo ran", devices=[["early-0"]], hold_start=True)
    await desk.cluster.launch(waiting)
    await asyncio.sleep(0.2)
    before = time.monotonic()
    await desk.cluster.notify(waiting.key, notice(60))
    gone = await desk.gone(waiting.key)
    assert gone.notice == "evict" and gone.flow_exit is None
    assert time.monotonic() - before < 50
    assert desk.log(waiting.key) == ""


async def test_launching_a_key_that_exists_adopts_it_8880(desk: Desk) -> None:
    """Issue 8880: the same run is submitted twice within seconds, and runs twice."""
    order = desk.order(command="echo once; sleep 1")
    launches = await asyncio.gather(*(desk.cluster.launch(order) for _ in range(4)))
    launches.append(await desk.cluster.launch(order))
    assert len({launch["process"]["pid"] for launch in launches}) == 1
    await desk.gone(order.key)
    assert (await desk.cluster.launch(order))["process"] == launches[0]["process"]
    assert desk.log(order.key) == "once\n"
    assert sum(isinstance(event, Gone) for event in desk.told[order.key]) == 1


async def test_a_command_that_does_not_exist_is_the_flows_own_exit(desk: Desk) -> None:
    order = desk.order(command="no-such-program-anywhere")
    assert (await desk.run(order)).flow_exit == 127
    assert "no-such-program-anywhere" in desk.log(order.key)


async def test_what_nobody_listens_to_does_not_pile_up_in_the_worker_21031_18605(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issues 21031, 18605: event queues without a bound, and a worker whose memory grows."""
    monkeypatch.setattr("dsec_workers.clusters.local.cluster.EVENTS_AHEAD", 1)
    cluster = LocalCluster(home=desk.home, nodes=(), clock=SystemClock())
    order = desk.order("for step in range(3): channel.call('report', step=step); time.sleep(0.6)")
    await cluster.launch(order)
    await desk.cluster.launch(order)
    gone = await desk.gone(order.key)
    assert cluster._events.qsize() == 1
    told: list[ClusterEvent] = []
    async with asyncio.timeout(20):
        async for event in cluster.events():
            told.append(event)
            if isinstance(event, Gone):
                break
    await cluster.close()
    assert told[-1] == gone
    assert any(isinstance(event, Progressed) for event in told)
    news = [[event for event in heard if not isinstance(event, Progressed)] for heard in (told, desk.told[order.key])]
    assert news[0] == news[1], "all of it is told, in order, once somebody listens"
