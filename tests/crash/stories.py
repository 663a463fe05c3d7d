"""The stories: each leads runs through a part of their life in a few seconds, and together through every fault point.

A story only submits, waits and interferes as people and machines do; it never knows what will fail. It must therefore
reach its end whatever is struck, as long as the world recovers.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.model.gangs import GangState
from tests.crash.sightings import processes_of, resume, stopped
from tests.crash.world import World

Story = Callable[[World], None]
INPUTS = ["file:///data/of-a-story"]
"""For a run whose nodes are to be told to fetch; nobody does, so that all of an order's life is the leader's."""
LINGERS = {"lingers": True}
"""For a run that the story interrupts: its first attempt must still run by then, on a slow machine too."""


def eviction(world: World) -> None:
    """A gang on all devices checkpoints, gives way to an urgent one, resumes from its commit, and completes."""
    low = world.train("low", steps=150, nodes=2, devices_per_node=2, grace="8s", parameters=LINGERS, inputs=INPUTS)
    world.wait("low to commit", lambda: ((g := world.gang(low)) and g.last_commit_at) or _is_over(world, low))
    urgent = world.train("urgent", steps=5, nodes=1, devices_per_node=1, priority=100, grace="8s", inputs=INPUTS)
    world.wait("urgent to be over", lambda: _is_over(world, urgent))
    world.wait_until_over()


def cancellation(world: World) -> None:
    """One run is cancelled while it runs, one while it waits behind it; a third then gets the devices."""
    # It would run for an hour: only a stop ends it in time.
    first = world.train("first", steps=100_000, expects=("CANCELLED",), nodes=2, devices_per_node=2, grace="5s")
    world.wait("first to commit", lambda: (g := world.gang(first)) and g.last_commit_at)
    second = world.start("waits", "second", expects=("CANCELLED",), nodes=2, devices_per_node=2)
    world.wait("second to wait", lambda: (g := world.gang(second)) and g.state is GangState.WAITING and g.reason)
    world.wait("second to be told why", lambda: world.state(second)[1] != "Scheduled")
    third = world.train("third", steps=3, nodes=1, devices_per_node=1)
    # With an infrastructure of its own the server leaves a Cancelling run to its worker.
    world.http.patch(f"flow_runs/{second}", json={"infrastructure_pid": "left-by-another"}).raise_for_status()
    world.set_state(second, "CANCELLING")
    world.set_state(first, "CANCELLING")
    world.wait("third to be over", lambda: _is_over(world, third))
    world.wait_until_over()


def death(world: World) -> None:
    """A supervisor is killed; what it left is cleared up and the run starts again from its commit."""
    run = world.train("run", steps=60, nodes=2, devices_per_node=1, parameters=LINGERS)
    world.wait("a commit", lambda: ((g := world.gang(run)) and g.last_commit_at) or _is_over(world, run))
    _kill_supervisor(world)
    world.wait_until_over()


def failed_launch(world: World) -> None:
    """A foreign process holds a device, so the start fails whole; once it lets go, the run starts."""
    with _foreign_lock(world.home / "devices" / "GPU-declared-0-0.lock"):
        run = world.train("run", steps=5, nodes=1, devices_per_node=2, inputs=INPUTS)
        world.wait("a failed start", lambda: (g := world.gang(run)) and (g.infrastructure_restarts or g.attempt > 1))
    world.wait_until_over()


def restart(world: World) -> None:
    """The worker is killed while a gang runs: its successor adopts it, and the gang notices nothing."""
    run = world.train("run", steps=150, nodes=2, devices_per_node=1)
    world.wait_for_note(run, what="step", step=5)
    world.kill_worker()
    world.wait_until_over()


def takeover(world: World) -> None:
    """A standby takes over from a leader that is killed, then from one that is drained; each forgets old entries."""
    world.ledger.put_policy(world.pool, {"keep_decisions_seconds": 0.2}, by="crash", why="a test")
    parameters = {"every": 10, "commits_each": True}  # more commits than a store keeps heads
    run = world.train("run", steps=250, nodes=1, devices_per_node=2, parameters=parameters)
    world.wait_for_note(run, what="step", step=2)
    world.new_worker()
    first = world.wait("somebody to lead", world.leader)  # not the first worker, if that was struck
    processes.signal_process(world.by_holder[first], signal.SIGKILL, at="crash.test")
    world.wait("another to lead", lambda: world.leader() not in (None, first))
    world.new_worker()
    old = world.living[:-1]
    time.sleep(1.0)
    for process in old:
        processes.signal_process(process, signal.SIGTERM, at="crash.test")
    world.wait("the drained worker to exit", lambda: not any(map(processes.is_alive, old)), 20)
    world.wait_until_over()


def deaf(world: World) -> None:
    """A gang that ignores its notice is stopped at its deadline, and resumes from its commit."""
    parameters = {"deaf": True, "step_seconds": 0.06, **LINGERS}
    low = world.train("low", steps=120, nodes=1, devices_per_node=2, grace="1s", parameters=parameters)
    world.wait("low to commit", lambda: ((g := world.gang(low)) and g.last_commit_at) or _is_over(world, low))
    urgent = world.train("urgent", steps=3, nodes=2, devices_per_node=2, priority=100)
    world.wait("urgent to be over", lambda: _is_over(world, urgent))
    world.wait_until_over()


def refused_launch(world: World) -> None:
    """Three times no supervisor comes to life: the launch is given up whole, and the run claimed again."""
    world.train("run", steps=5, nodes=1, devices_per_node=1, inputs=INPUTS)
    world.wait_until_over(90)


def orphans(world: World) -> None:
    """Worker and supervisors die together, and nobody is there to clear up: the processes leave by themselves."""
    flow = world.start("stubborn", "flow", nodes=1, devices_per_node=1)
    rank = world.start("stubborn", "rank", nodes=1, devices_per_node=1, parameters={"in_rank": True})
    for run in (flow, rank):
        world.wait(
            "it to stay", lambda run=run: any(n["what"] == "stays" or n["attempt"] > 1 for n in world.notes(run))
        )
    with world.unwatched():
        for process in world.living:
            processes.signal_process(process, signal.SIGKILL, at="crash.test")
        _kill_supervisor(world)
        _wait_until_left(world)
    world.wait_until_over()


def by_command(world: World) -> None:
    """The flow's process is started by a command of the user's, not forked."""
    world.start(
        "waits", "run", nodes=1, command=f"exec {sys.executable} -m prefect.engine", parameters={"seconds": 0.2}
    )
    world.wait_until_over(90)


def raced(world: World) -> None:
    """A run is cancelled at the very moment in which its reason is written."""
    blocker = world.start("waits", "blocker", nodes=2, devices_per_node=2, parameters={"seconds": 6.0})
    world.wait_for_note(blocker, what="flow")
    run = world.start("waits", "run", expects=("CANCELLED",), nodes=2, devices_per_node=2)
    world.runs[run]["ends"] = 2  # its first end is overwritten by the racing reason, and restored
    world.wait("the worker to stop", lambda: (world.once / "prefect.reason.write").exists())
    world.set_state(run, "CANCELLED", force=True)
    time.sleep(0.3)
    for pid in stopped(processes_of(world.home)):
        resume(pid)
    world.wait_until_over()


def old_fork_server(world: World) -> None:
    """The fork-server runs older code than the worker: it is replaced."""
    world.train("run", steps=5, nodes=1, devices_per_node=1)
    world.wait_until_over()


def leaky(world: World) -> None:
    """Ranks and flows leave children behind that would keep devices; they are found and killed."""
    world.start("leaky", "run", nodes=1, devices_per_node=1)
    world.start("command", "command", nodes=1, devices_per_node=2)
    world.wait_until_over()


def failing_rank(world: World) -> None:
    """One rank fails and the other does not want to leave: it is made to, and the run has failed."""
    world.start("one_rank_fails", "run", expects=("FAILED",), nodes=1, devices_per_node=2)
    world.wait_until_over()


def wishes(world: World) -> None:
    """Somebody evicts, prioritises and cancels by the command line's way, through the ledger."""
    run = world.train("run", steps=200, nodes=1, devices_per_node=2, parameters=LINGERS)
    world.wait("a commit", lambda: ((g := world.gang(run)) and g.last_commit_at) or _is_over(world, run))
    waiting = world.start("waits", "waiting", expects=("CANCELLED",), nodes=2, devices_per_node=2)
    world.wait("it waits", lambda: (g := world.gang(waiting)) and g.state is GangState.WAITING)
    world.ledger.wish(world.pool, "prioritize", waiting, {"priority": 5}, by="crash", why="a test")
    freeze = {"scope": "team", "name": "nobody"}
    frozen = world.ledger.wish(world.pool, "freeze", None, freeze, by="crash", why="a test")
    world.wait("the order to be taken up", lambda: world.ledger.wish_taken_up(frozen))
    world.ledger.wish(world.pool, "thaw", None, freeze, by="crash", why="a test")
    world.ledger.wish(world.pool, "evict", run, {}, by="crash", why="a test")
    # Cancelled between its reservation and its claim, while what it waits for leaves.
    world.wait("it is promised its place", lambda: (g := world.gang(waiting)) and g.state is not GangState.WAITING)
    world.ledger.wish(world.pool, "cancel", waiting, {}, by="crash", why="a test")
    world.wait_until_over()


def withdrawn(world: World) -> None:
    """A preemptor is cancelled before its victim has answered: the notice is taken back."""
    parameters = {"deaf": True, "step_seconds": 0.05, **LINGERS}
    low = world.train("low", steps=120, nodes=1, devices_per_node=2, grace="30s", parameters=parameters)
    world.wait("low to commit", lambda: ((g := world.gang(low)) and g.last_commit_at) or _is_over(world, low))
    urgent = world.start("waits", "urgent", nodes=2, devices_per_node=2, priority=100, expects=("CANCELLED",))
    world.wait("urgent to be promised", lambda: (g := world.gang(urgent)) and g.state is not GangState.WAITING)
    time.sleep(0.3)
    world.set_state(urgent, "CANCELLING")
    world.wait_until_over()


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        eviction, cancellation, death, failed_launch, restart, takeover, deaf, leaky, failing_rank, wishes, withdrawn,
        refused_launch, orphans, by_command, raced, old_fork_server,
    )
}  # fmt: skip
FORK_SERVER = {"takeover": "", "old_fork_server": "old"}
"""The fork-server that a story begins with, where it is not a fresh one: none (the worker starts it), or an old one."""
ASIDE = {
    "raced": "prefect.reason.write:stall",
    "refused_launch": "forkserver.fork:error,supervisor.lock:error,supervisor.record.write:error",
}
"""Faults that belong to a story itself."""


def _is_over(world: World, run_id: str) -> bool:
    return world.state(run_id)[0] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def _wait_until_left(world: World) -> None:
    """Until the processes of all gangs are gone, or it is clear that a struck one stays."""
    with suppress(AssertionError):
        world.wait("the processes to leave", lambda: not _gangs_processes(world), 8.0)


def _gangs_processes(world: World) -> list[int]:
    """What writes into a gang's directory."""
    inside = f"{world.home / 'gangs'}{os.sep}"
    return [
        pid
        for pid in processes_of(world.home)
        if any(path.startswith(inside) for path in processes.open_files(pid).values())
    ]


def _kill_supervisor(world: World) -> None:
    for pid in processes_of(world.home):
        if Path(processes.open_files(pid).get(1, "")).name == "supervisor.log":
            world.tell(f"the story kills supervisor {pid}")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _foreign_lock(path: Path):  # type: ignore[no-untyped-def]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
