"""What survives: the worker's death, the fork-server's, the supervisor's; and that a reused pid fools nobody."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local.layout import order_to_json, read_json
from dsec_workers.clusters.protocol import GangKey, Gone, Progressed, Started
from tests.crash.cases import seed
from tests.fixtures.rotation import in_turn
from tests.workers.clusters.conftest import Desk, listen, notice

pytestmark = pytest.mark.slow

WORKER = """
import asyncio, json, sys
from pathlib import Path
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local.layout import order_from_json
from dsec_workers.clusters.protocol import Started

async def main():
    cluster = LocalCluster(home=Path(sys.argv[1]), nodes=(), clock=SystemClock())
    await cluster.launch(order_from_json(json.loads(Path(sys.argv[2]).read_text())))
    async for event in cluster.events():
        if isinstance(event, Started):
            print("started", flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def own_desk(tmp_path: Path, open_desk: Callable[[Path], Desk]) -> AsyncIterator[Desk]:
    """A desk in a home of its own, with a fork-server that may be killed."""
    home = tmp_path / "home"
    desk = open_desk(home)
    await desk.cluster.prepare()
    yield desk
    await LocalCluster(home=home, nodes=(), clock=SystemClock()).shutdown(grace_seconds=0.2)
    await desk.cluster.close()


def fork_server_of(home: Path) -> int:
    record = read_json(home / "fork-server.json")
    assert record is not None
    return int(record["process"]["pid"])


async def test_a_successor_adopts_with_exit_codes_after_kill_9_of_worker_and_fork_server(own_desk: Desk) -> None:
    desk = own_desk
    let_go = desk.scripts / "let-go"
    running = desk.order(
        command=f"while [ ! -e {let_go} ]; do sleep 0.05; done; exit 7", devices=[["adopt-0"], ["adopt-1"]]
    )
    ended = desk.order(command="exit 5")
    for order in (running, ended):
        path = desk.scripts / "order.json"
        path.write_text(json.dumps(order_to_json(order)))
        worker = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", textwrap.dedent(WORKER), str(desk.home), str(path)], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == b"started\n"
        worker.kill()
        worker.wait()
    os.kill(fork_server_of(desk.home), signal.SIGKILL)
    await asyncio.sleep(0.3)

    found = {gang.key: gang for gang in await desk.cluster.adopt()}
    assert set(found) == {running.key, ended.key}
    assert found[running.key].placement == running.placement
    assert [type(event) for event in found[running.key].events] == [Started]
    last = found[ended.key].events[-1]
    assert isinstance(last, Gone) and last.flow_exit == 5
    listening = asyncio.create_task(listen(desk))
    let_go.touch()
    assert (await desk.gone(running.key)).flow_exit == 7
    assert not any(isinstance(event, Started) for event in desk.told[running.key])  # adopt has reported it
    listening.cancel()
    after = desk.order(command="exit 1")
    await desk.cluster.launch(after)  # with a fork-server that it had to start again


async def test_a_killed_supervisor_is_reported_gone_and_nothing_of_its_gang_is_left(own_desk: Desk) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        print("up", flush=True)
        run(["sh", "-c", "trap '' TERM; sleep 300"])
        """,
        devices=[["orphan-0"], ["orphan-1"]],
    )
    launch = await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    await asyncio.sleep(0.2)
    await desk.cluster.notify(order.key, notice(60))
    os.kill(launch["process"]["pid"], signal.SIGKILL)
    gone = await desk.gone(order.key)
    assert gone.flow_exit is None and gone.lost_member is not None and gone.notice == "evict"
    assert await desk.is_cleared(order.key)
    assert not desk.holds("orphan-0") and not desk.holds("orphan-1")
    assert [type(e).__name__ for e in desk.told[order.key]] == ["Started", "DevicesReleased", "Gone"]
    listening.cancel()


async def test_a_supervisor_that_told_progress_and_was_killed_is_told_gone_all_the_same(own_desk: Desk) -> None:
    """Progress is counted and not kept, so the numbers in a dead supervisor's files lag behind those it told."""
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(
        """
        for step in range(1000):
            channel.call("report", step=step)
            time.sleep(0.3)
        """
    )
    launch = await desk.cluster.launch(order)
    async with asyncio.timeout(20):
        while sum(isinstance(event, Progressed) for event in desk.told.get(order.key, [])) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    os.kill(launch["process"]["pid"], signal.SIGKILL)
    gone = await desk.gone(order.key)
    assert gone.lost_member is not None
    assert [type(e).__name__ for e in desk.told[order.key]][-2:] == ["DevicesReleased", "Gone"]
    listening.cancel()


async def test_a_pid_that_was_given_again_is_not_taken_for_the_supervisor(own_desk: Desk) -> None:
    desk = own_desk
    order = desk.order(command="sleep 300", devices=[["reuse-0"]])
    launch = await desk.cluster.launch(order)
    await desk.cluster.close()
    os.kill(launch["process"]["pid"], signal.SIGKILL)
    bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)  # noqa: ASYNC220
    while processes.identify(bystander.pid).start_time == launch["process"]["start_time"]:
        bystander.kill()  # all of this went by within one tick of the process table's clock
        bystander.wait()
        bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)  # noqa: ASYNC220
    try:
        record = read_json(desk.directory(order.key).supervisor)
        assert record is not None
        record["process"]["pid"] = bystander.pid  # same pid, but started at another time
        desk.directory(order.key).supervisor.write_text(json.dumps(record))
        (adopted,) = await desk.cluster.adopt()
        assert isinstance(adopted.events[-1], Gone)
        assert bystander.poll() is None, "a process that is not ours was killed"
        assert not desk.holds("reuse-0")
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_supervisor_of_an_earlier_boot_is_dead_whatever_the_process_table_says(own_desk: Desk) -> None:
    here = processes.identify(os.getpid())
    assert processes.is_alive(here)
    before = processes.ProcessId(pid=here.pid, start_time=here.start_time, boot_id="another-boot")
    assert not processes.is_alive(before)
    assert not processes.signal_process(before, signal.SIGKILL, at="test.signal")


async def test_forgetting_a_gang_removes_its_credentials_and_keeps_its_logs(own_desk: Desk) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(command="echo said; echo scratch > file", env={"SECRET": "s3cret"})
    await desk.run(order)
    directory = desk.directory(order.key)
    assert directory.order.stat().st_mode & 0o077 == 0
    await desk.cluster.forget(order.key)
    await desk.cluster.forget(order.key)
    assert await desk.cluster.adopt() == ()
    assert await only_logs_are_left(desk, order.key)
    assert desk.log(order.key) == "said\n"
    listening.cancel()


async def test_a_gang_forgotten_before_its_end_is_written_leaves_only_logs(own_desk: Desk) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(command="true", env={"DSEC_FAULT": "supervisor.exit.write:error:1"})
    await desk.run(order)
    (desk.directory(order.key).path / ".gone.json.0123").write_text("what a supervisor killed in mid-write leaves")
    await desk.cluster.forget(order.key)
    assert await only_logs_are_left(desk, order.key)
    listening.cancel()


async def test_what_cannot_be_removed_of_a_forgotten_gang_is_removed_later(
    own_desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(command="true")
    await desk.run(order)
    (tmp_path / "struck").mkdir()
    monkeypatch.setenv("DSEC_FAULT", "cluster.forget.record:error")
    monkeypatch.setenv("DSEC_FAULT_ONCE", str(tmp_path / "struck"))
    await desk.cluster.forget(order.key)
    assert desk.directory(order.key).order.exists()
    async with asyncio.timeout(10):
        while desk.directory(order.key).order.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await only_logs_are_left(desk, order.key)
    listening.cancel()


@pytest.mark.parametrize("point", ["forkserver.fork", "forkserver.fork_again"])
async def test_a_fork_server_that_cannot_fork_now_lives_on_and_forks_when_asked_again(
    tmp_path: Path, open_desk: Callable[[Path], Desk], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    (tmp_path / "struck").mkdir()
    monkeypatch.setenv("DSEC_FAULT", f"{point}:error")
    monkeypatch.setenv("DSEC_FAULT_ONCE", str(tmp_path / "struck"))
    desk = open_desk(tmp_path / "home")
    await desk.cluster.prepare()
    listening = asyncio.create_task(listen(desk))
    before = fork_server_of(desk.home)
    try:
        order = desk.order(command="echo ran")
        assert (await desk.run(order)).flow_exit == 0
        assert desk.log(order.key) == "ran\n"
        assert (tmp_path / "struck" / point).exists()
        assert fork_server_of(desk.home) == before
        assert not processes.descendants([before]), "a half-forked supervisor serves as a second fork-server"
    finally:
        listening.cancel()
        await desk.cluster.shutdown(grace_seconds=0.2)


async def only_logs_are_left(desk: Desk, key: GangKey) -> bool:
    """Once the gang's supervisor, which may outlive the word of its end for a moment, has left."""
    async with asyncio.timeout(10):
        while desk.left(key):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    names = sorted(path.name for path in desk.directory(key).path.iterdir())
    return names == ["flow.log", "member-0.log", "supervisor.log"]


async def test_an_order_whose_launch_was_cut_off_is_not_adopted_and_can_be_launched_again(own_desk: Desk) -> None:
    desk = own_desk
    order = desk.order(command="echo ran")
    directory = desk.directory(order.key)
    directory.path.mkdir(parents=True)
    directory.order.write_text(json.dumps(order_to_json(order)))
    assert await desk.cluster.adopt() == ()
    listening = asyncio.create_task(listen(desk))
    assert (await desk.run(order)).flow_exit == 0
    listening.cancel()


@pytest.mark.parametrize("evict", [False, True])
async def test_shutting_down_leaves_no_process_behind(own_desk: Desk, evict: bool) -> None:
    desk = own_desk
    order = desk.order(
        """
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        subprocess.Popen(["setsid", "--fork", "sleep", "300"])
        print("up", flush=True)
        wait_for_notice()
        print(channel.notice["kind"], flush=True)
        """,
        devices=[["down-0"]],
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "up")
    fork_server = processes.identify(fork_server_of(desk.home))
    assert await LocalCluster(home=desk.home, nodes=(), clock=SystemClock()).shutdown(evict=evict) == 1
    assert not processes.is_alive(fork_server)
    assert await desk.is_cleared(order.key)
    assert desk.log(order.key) == ("up\ndrain\n" if evict else "up\n")
    gone = read_json(desk.directory(order.key).gone)
    assert gone is not None and gone["events"][-1]["flow_exit"] == (0 if evict else -15)


async def test_a_fork_server_that_is_just_starting_is_found_by_a_shutdown(
    tmp_path: Path, open_desk: Callable[[Path], Desk]
) -> None:
    home = tmp_path / "home"
    starting = open_desk(home)
    task = asyncio.create_task(starting.cluster.prepare())
    await asyncio.sleep(0.05)
    task.cancel()
    await LocalCluster(home=home, nodes=(), clock=SystemClock()).shutdown()
    await asyncio.sleep(0.5)
    words = {tuple(processes.command_line(row.pid)) for row in processes.processes() if not row.is_zombie}
    assert not [line for line in words if str(home) in line]


async def test_a_worker_begins_while_the_fork_server_of_one_that_died_is_still_starting(
    tmp_path: Path, open_desk: Callable[[Path], Desk]
) -> None:
    home = tmp_path / "home"
    died = asyncio.create_task(open_desk(home).cluster.prepare())
    while not (home / "fork-server.lock").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    died.cancel()
    successor = LocalCluster(home=home, nodes=(), clock=SystemClock())
    await successor.prepare()
    assert processes.sighting(fork_server_of(home)) is not None
    await successor.shutdown()
    await successor.close()


async def test_an_unwritable_end_is_written_later(own_desk: Desk) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    order = desk.order(command="exit 6", env={"DSEC_FAULT": "supervisor.exit.write:error:1"})
    assert (await desk.run(order)).flow_exit == 6
    async with asyncio.timeout(5):
        while not desk.directory(order.key).gone.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "could not be written, trying again" in desk.log(order.key, "supervisor")
    listening.cancel()


DEATHS = [
    (point, mode)
    for mode in ("kill_before", "kill_after")
    for point in ("supervisor.record.write", "supervisor.flow.fork", "supervisor.member.fork")
]


@pytest.mark.parametrize(("point", "mode"), in_turn(DEATHS, day=seed(), days=2))
async def test_a_supervisor_that_dies_while_starting_starts_nothing_or_is_told_gone(
    own_desk: Desk, point: str, mode: str
) -> None:
    desk = own_desk
    listening = asyncio.create_task(listen(desk))
    once = desk.scripts / "once"
    once.mkdir()
    env = {"DSEC_FAULT": f"{point}:{mode}", "DSEC_FAULT_ONCE": str(once)}
    order = desk.order(command="echo ran", devices=[["dying-0"], ["dying-1"]], env=env)
    await desk.cluster.launch(order)
    gone = await desk.gone(order.key)
    if gone.start_failure is None:  # nothing had been started, so it was started again
        assert point == "supervisor.record.write" and mode == "kill_before"
        assert gone.flow_exit == 0 and desk.log(order.key) == "ran\n"
    else:
        assert desk.log(order.key) == "" and gone.flow_exit is None
    assert await desk.is_cleared(order.key)
    assert not desk.holds("dying-0") and not desk.holds("dying-1")
    listening.cancel()
