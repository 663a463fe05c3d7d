"""The failures that have a name of their own, each in a world of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.ledger import Election
from dsec_blocks.model.gangs import GangState
from tests.crash import cases, invariants
from tests.crash.play import Stage
from tests.crash.sightings import processes_of, resume
from tests.crash.world import Strike, World
from tests.fixtures.clock import ManualClock
from tests.fixtures.disks import SmallDisk
from tests.fixtures.ledgers import new_ledger
from tests.fixtures.pausing import pause
from tests.fixtures.rotation import in_turn
from tests.fixtures.zygote import CLOCK_FILE, CLOCK_SHIFT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
DAY = 86_400.0
LEDGER_DISK_BYTES = 8 * 2**20


@pytest.fixture
def worlds(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**fields: Any) -> World:
        world = World(server=stage.server, home=tmp_path, zygote=stage.zygote, **fields)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


def judge(world: World) -> None:
    found = [*invariants.broken(world), *invariants.broken_by_a_second_recovery(world)]
    assert not found, "\n".join([*found, world.report()])


def test_a_leader_that_was_stopped_is_fenced_when_it_goes_on(worlds: Callable[..., World]) -> None:
    world = worlds(may_repeat=False)
    world.begin()
    run = world.train("run", steps=300, nodes=2, devices_per_node=1)
    world.wait_for_note(run, what="step", step=3)
    leader, before = world.living[0], world.leader()
    pause(leader.pid, world.ledger_url)
    world.new_worker()
    world.wait("a successor", lambda: world.leader() not in (before, None))
    second = world.train("second", steps=5, nodes=1, devices_per_node=1)
    resume(leader.pid)
    world.wait("the old leader to notice", lambda: "another worker leads" in world.worker_log(0))
    world.wait_until_over()
    assert processes.is_alive(leader), "a fenced leader stands by; it does not die"
    assert world.gang(second).attempt == 1  # type: ignore[union-attr]
    judge(world)


def test_a_pid_given_again_is_neither_adopted_nor_killed(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.begin()
    run = world.train("run", steps=60, nodes=1, devices_per_node=2, parameters={"lingers": True})
    world.wait("a commit", lambda: (gang := world.gang(run)) and gang.last_commit_at)
    innocent = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
    try:
        with world.unwatched():
            processes.signal_process(world.living[0], signal.SIGKILL, at="crash.test")
            record = world.home / "gangs" / f"{run}-1" / "supervisor.json"
            told = json.loads(record.read_text())
            os.kill(told["process"]["pid"], signal.SIGKILL)
            told["process"]["pid"] = innocent.pid
            record.write_text(json.dumps(told))
        world.wait_until_over()
        assert innocent.poll() is None
        assert world.gang(run).attempt == 2  # type: ignore[union-attr]
        judge(world)
    finally:
        innocent.kill()
        innocent.wait()


def test_successors_with_wrong_clocks_let_run_what_runs(worlds: Callable[..., World]) -> None:
    """One is a day ahead, and the one after it a day behind."""
    world = worlds(may_repeat=False)
    world.begin()
    run = world.train("run", steps=400, nodes=2, devices_per_node=1, parameters={"step_seconds": 0.05})
    world.wait_for_note(run, what="step", step=3)
    with world.unwatched():
        for shift in (DAY, -DAY):
            processes.signal_process(world.living[-1], signal.SIGKILL, at="crash.test")
            world.new_worker(**{CLOCK_SHIFT: str(shift)})
            world.wait_until_led(by=f"worker-{world.started - 1}")
            assert world.gang(run).state is GangState.RUNNING, "nobody adopted it"  # type: ignore[union-attr]
    world.wait_until_over()
    assert world.gang(run).attempt == 1  # type: ignore[union-attr]
    judge(world)


def test_a_clock_that_jumps_under_a_living_leader_times_nobody_out(
    worlds: Callable[..., World], tmp_path: Path
) -> None:
    """A day ahead, and then to a day behind."""
    clock = tmp_path / "clock"
    world = worlds(may_repeat=False, environment={CLOCK_FILE: str(clock)})
    world.begin()
    run = world.train("run", steps=200, nodes=2, devices_per_node=2, max_runtime="1h")
    world.wait_for_note(run, what="step", step=3)
    following = world.train("following", steps=5, nodes=2, devices_per_node=2, max_runtime="1h")
    world.wait("the second to wait", lambda: (gang := world.gang(following)) and gang.state is GangState.WAITING)
    for number, jump in enumerate((DAY, -DAY)):
        atomically = tmp_path / "clock.new"
        atomically.write_text(str(jump))
        atomically.rename(clock)
        late = world.train(f"late-{number}", steps=5, nodes=1, devices_per_node=1)
        world.wait("it to be known", lambda late=late: world.gang(late) is not None)
    world.wait_until_over()
    assert [gang.attempt for gang in map(world.gang, world.runs) if gang is not None] == [1, 1, 1, 1]
    judge(world)


def test_no_wall_clock_fences_or_unfences_anybody(tmp_path: Path) -> None:
    leaders, standbys = ManualClock(), ManualClock()
    ledger = new_ledger(tmp_path / "ledger.db", clock=leaders)
    leader = Election(ledger, "pool", "leader", 3.0, leaders)
    standby = Election(ledger, "pool", "standby", 3.0, standbys)
    fence = leader.step()
    assert fence is not None
    for jump in (DAY, -2 * DAY, 365 * DAY):
        leaders.seconds += jump
        standbys.seconds -= jump
        for _ in range(5):
            leaders.ticks += 1.0
            standbys.ticks += 1.0
            assert leader.step() == fence
            assert standby.step() is None
    ledger.close()


def test_a_fork_server_that_died_is_started_again_by_the_next_launch(worlds: Callable[..., World]) -> None:
    world = worlds(may_repeat=False)
    world.begin()
    first = world.train("first", steps=150, nodes=1, devices_per_node=1)
    world.wait_for_note(first, what="step", step=1)
    record = json.loads((world.home / "fork-server.json").read_text())
    os.kill(record["process"]["pid"], signal.SIGKILL)
    world.train("second", steps=5, nodes=1, devices_per_node=1)
    world.wait_until_over()
    judge(world)


@pytest.mark.parametrize(
    "point", in_turn(["cluster.launch", "prefect.claim.pending", "supervisor.flow.fork"], day=cases.seed(), days=3)
)
def test_a_launch_that_ends_after_its_reservation_expired_starts_nothing_twice(
    worlds: Callable[..., World], point: str
) -> None:
    world = worlds(strike=Strike(point=point, mode="stall"), environment={"DSEC_RESERVATION": "1s"})
    world.begin()
    run = world.train("run", steps=20, nodes=2, devices_per_node=1)
    world.wait_until_over(100)
    assert world.was_struck
    if point == "prefect.claim.pending":  # later ones have left the reservation behind: they are being launched
        told = [decision.why for decision in world.ledger.decisions(world.pool, run_id=run)]
        assert "its reservation expired before it could start" in told
    judge(world)


def test_a_worker_whose_ledger_has_a_full_disk_goes_on_when_there_is_room(
    worlds: Callable[..., World], small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(LEDGER_DISK_BYTES)
    world = worlds(may_repeat=False, ledger_url=f"sqlite:///{disk.path / 'ledger.db'}")
    world.begin()
    run = world.train("run", steps=200, nodes=1, devices_per_node=1)
    world.wait_for_note(run, what="step", step=3)
    worker = world.living[0]
    filler = disk.path / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    second = world.train("second", steps=5, nodes=1, devices_per_node=1)
    world.wait("its worker to fail", lambda: "database or disk is full" in world.worker_log())
    assert world.gang(second) is None, "its worker could write after all"
    filler.unlink()
    world.wait_until_over()
    assert processes.is_alive(worker), "a full disk is no reason to die"
    judge(world)


def test_a_snapshot_that_finds_the_spool_full_costs_steps_but_no_run(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.begin()
    low = world.train("low", steps=400, nodes=1, devices_per_node=2, grace="5s", parameters={"full": True})
    world.wait("low to commit", lambda: (gang := world.gang(low)) and gang.last_commit_at)
    committed = world.gang(low).last_step  # type: ignore[union-attr]
    world.train("urgent", steps=3, nodes=2, devices_per_node=2, priority=100)
    world.wait_until_over()
    begun = [note["step"] for note in world.notes(low) if note["what"] == "begin" and note["attempt"] == 2]
    assert begun and min(begun) >= (committed or 0) > 0, "it resumes from the commit before"
    judge(world)


def test_a_worker_started_by_its_command_line_recovers_as_the_forked_ones_do(stage: Stage, tmp_path: Path) -> None:
    world = World(server=stage.server, home=tmp_path, zygote=None, may_repeat=False)
    try:
        world.begin()
        run = world.train("run", steps=250, nodes=2, devices_per_node=1)
        world.wait_for_note(run, what="step", step=3)
        world.kill_worker()
        world.wait_until_over(90)
        assert world.gang(run).state is GangState.ENDED  # type: ignore[union-attr]
        judge(world)
    finally:
        world.close()
    assert not processes_of(tmp_path)
