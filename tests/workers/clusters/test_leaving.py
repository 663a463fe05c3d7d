"""How a gang leaves: by itself, because a member died, because it was told to, and because it did not listen."""

import asyncio
import os
import signal
import time

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.local.layout import read_json
from dsec_workers.clusters.protocol import Committed, DevicesReleased, Gone, Progressed, Snapshotting, Started
from tests.workers.clusters.conftest import Desk, notice

pytestmark = pytest.mark.slow


def members_of(desk: Desk, pid: int) -> list[int]:
    """The supervisor's children that hold a device lock and are nobody else's child."""
    locks = str(desk.home / "devices")
    return [
        row.pid
        for row in processes.processes()
        if row.parent == pid and any(path.startswith(locks) for path in processes.open_files(row.pid).values())
    ]


async def test_a_members_death_stops_the_whole_gang(desk: Desk) -> None:
    order = desk.order(
        "signal.signal(signal.SIGTERM, lambda *_: (print('told to stop', flush=True), sys.exit(4)))\n"
        "print('up', flush=True)\nrun(['sleep', '60'])\ntime.sleep(60)",
        devices=[["lost-0"], ["lost-1"]],
    )
    launch = await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    victim = members_of(desk, launch["process"]["pid"])[1]
    os.kill(victim, signal.SIGKILL)
    gone = await desk.gone(order.key)
    assert gone.lost_member in (0, 1)
    assert gone.member_exits[gone.lost_member] == -9
    assert gone.flow_exit == 4
    assert gone.notice is None
    assert await desk.is_cleared(order.key)
    assert not desk.holds("lost-0") and not desk.holds("lost-1")


async def test_a_noticed_gang_gives_its_devices_back_before_its_flow_process_ends(desk: Desk) -> None:
    rank = desk.script(
        """
        print("up", flush=True)
        wait_for_notice()
        channel.call("snapshotting", rank=int(os.environ["RANK"]))
        time.sleep(0.2)
        sys.exit(75)
        """
    )
    order = desk.order(
        f"""
        ranks, last = run([sys.executable, {rank!r}], per="member")
        print([r["exit"] for r in ranks], last["evicted"], channel.notice["reason"], flush=True)
        time.sleep(1.0)
        """,
        devices=[["polite-0"], ["polite-1"]],
    )
    await desk.cluster.launch(order)
    for name in ("rank-0", "rank-1"):
        await desk.said(order.key, "up", log=name)
    told_at = SystemClock().now()
    await desk.cluster.notify(order.key, notice(10))
    released = await desk.until(order.key, DevicesReleased)
    assert not desk.holds("polite-0") and not desk.holds("polite-1")
    assert Gone not in {type(event) for event in desk.told[order.key]}
    gone = await desk.gone(order.key)
    kinds = [type(event).__name__ for event in desk.told[order.key]]
    assert kinds == ["Started", "Snapshotting", "DevicesReleased", "Gone"]
    snapshot = await desk.until(order.key, Snapshotting)
    assert told_at <= snapshot.at <= released.at <= gone.at - 0.8
    assert gone.flow_exit == 0 and gone.notice == "evict" and gone.member_exits == {0: 0, 1: 0}
    assert desk.log(order.key).strip() == "[75, 75] True a test needs the devices"


async def test_a_missed_deadline_means_sigterm_and_then_sigkill_for_everybody(desk: Desk) -> None:
    stubborn = desk.script(
        """
        signal.signal(signal.SIGTERM, lambda *_: print("rank heard SIGTERM", flush=True))
        print("up", flush=True)
        while True:
            time.sleep(0.1)
        """
    )
    order = desk.order(
        f"""
        signal.signal(signal.SIGTERM, lambda *_: print("flow heard SIGTERM", flush=True))
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        subprocess.Popen(["setsid", "--fork", "sleep", "300"])
        run([sys.executable, {stubborn!r}])
        while True:
            time.sleep(0.1)
        """,
        devices=[["deaf-0"]],
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "up", log="rank-0")
    assert len(desk.left(order.key)) >= 6  # supervisor, flow, member, rank, two that left the session
    before = time.monotonic()
    await desk.cluster.notify(order.key, notice(0.5))
    gone = await desk.gone(order.key)
    assert time.monotonic() - before > 2.4
    assert gone.flow_exit == -9 and gone.notice == "evict"
    assert "flow heard SIGTERM" in desk.log(order.key)
    assert "rank heard SIGTERM" in desk.log(order.key, "rank-0")
    assert await desk.is_cleared(order.key)
    assert not desk.holds("deaf-0")


async def test_a_flow_that_ends_takes_its_daemons_along(desk: Desk) -> None:
    order = desk.order("subprocess.Popen(['sleep', '300'], start_new_session=True)")
    gone = await desk.run(order)
    assert gone.flow_exit == 0
    assert await desk.is_cleared(order.key)


async def test_a_daemon_that_a_rank_left_behind_dies_before_the_devices_go(desk: Desk) -> None:
    rank = desk.script("subprocess.Popen(['setsid', '--fork', 'sleep', '300'], close_fds=False)")
    order = desk.order(
        f"""
        run([sys.executable, {rank!r}])
        print("ran", flush=True)
        wait_for_notice()
        time.sleep(0.5)
        """,
        devices=[["daemon-0"]],
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "ran")
    await desk.cluster.notify(order.key, notice(10))
    await desk.until(order.key, DevicesReleased)
    assert not desk.holds("daemon-0")
    names = [processes.environment(pid).get("RANK") for pid in desk.left(order.key)]
    assert "0" not in names
    await desk.gone(order.key)


async def test_a_notice_can_be_withdrawn_until_somebody_acts_on_it(desk: Desk) -> None:
    order = desk.order(
        """
        wait_for_notice()
        print("noticed", flush=True)
        while channel.notice is not None:
            time.sleep(0.005)
        print("withdrawn", flush=True)
        wait_for_notice()
        print(channel.call("stop_before", step=7)["stop_before"], flush=True)
        time.sleep(30)
        """
    )
    await desk.cluster.launch(order)
    await desk.until(order.key, Started)
    assert not await desk.cluster.withdraw(order.key)
    taken_back = notice(4.0)
    await desk.cluster.notify(order.key, taken_back)
    await desk.said(order.key, "noticed")
    assert await desk.cluster.withdraw(order.key)
    await desk.said(order.key, "withdrawn")
    await asyncio.sleep(taken_back.deadline - SystemClock().now() + 0.2)
    assert Gone not in {type(event) for event in desk.told[order.key]}
    await desk.cluster.notify(order.key, notice(20))
    await desk.said(order.key, "7")
    assert not await desk.cluster.withdraw(order.key)
    assert read_json(desk.directory(order.key).stop_before) == {"step": 7, "attempt": 1}


async def test_a_step_to_stop_before_is_the_same_for_all_and_needs_a_notice(desk: Desk) -> None:
    order = desk.order(
        """
        print(channel.call("stop_before", step=3)["stop_before"], flush=True)
        wait_for_notice()
        print(channel.call("stop_before", step=8)["stop_before"], channel.call("stop_before", step=9)["stop_before"])
        answer = channel.call("step", rank=1, step=8)
        print(answer["stop_before"], answer["notice"]["kind"])
        """
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "None")
    await desk.cluster.notify(order.key, notice(20))
    await desk.gone(order.key)
    assert desk.log(order.key) == "None\n8 8\n8 evict\n"


async def test_a_full_disk_does_not_fail_a_gang_that_gives_way(desk: Desk) -> None:
    order = desk.order(
        """
        print("up", flush=True)
        wait_for_notice()
        print(channel.call("stop_before", step=8)["stop_before"], channel.call("step", rank=1, step=8)["stop_before"])
        """,
        env={"DSEC_FAULT": "supervisor.notice.write:error,supervisor.stop_before.write:error"},
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    await desk.cluster.notify(order.key, notice(20))
    assert (await desk.gone(order.key)).flow_exit == 0
    assert desk.log(order.key) == "up\n8 8\n"
    assert "the step to stop before could not be written" in desk.log(order.key, "supervisor")


async def test_stop_is_sigterm_then_sigkill_after_the_grace_and_may_be_repeated(desk: Desk) -> None:
    order = desk.order(command="trap '' TERM; echo up; while true; do sleep 0.1; done")
    await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    before = time.monotonic()
    await desk.cluster.stop(order.key, 0.7)
    gone = await desk.gone(order.key)
    assert time.monotonic() - before > 0.6
    assert gone.flow_exit == -9
    await desk.cluster.stop(order.key, 0.7)
    await desk.cluster.notify(order.key, notice(1, NoticeKind.CANCEL))


async def test_progress_and_commits_are_told(desk: Desk) -> None:
    order = desk.order(
        """
        channel.call("report", has_on_evict=True)
        for step in range(200):
            channel.call("report", step=step, metrics={"loss": 1 / (step + 1)})
        channel.call("committed", step=150, seconds=0.25)
        """
    )
    gone = await desk.run(order)
    progress = [event for event in desk.told[order.key] if isinstance(event, Progressed)]
    assert len(progress) < 10  # 200 reports in a moment are not 200 writes to the ledger
    assert progress[-1].step == 199 and progress[-1].metrics == {"loss": 1 / 200} and progress[-1].has_on_evict is True
    assert [(e.step, e.seconds) for e in desk.told[order.key] if isinstance(e, Committed)] == [(150, 0.25)]
    assert gone.last_commit_step == 150
