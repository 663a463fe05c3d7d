"""A run that makes room by moving or by shrinking goes on at once in the place it was given, and loses no step."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.model.gangs import Gang, GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow
FINETUNE = "../../flows/dsec_flows/training/finetune.py:finetune"
STEPS = 8
WORK = """
import json
import os
from pathlib import Path
from time import monotonic, sleep

from dsec_blocks import gang, run

def wait(condition):
    until = monotonic() + 90
    while not condition() and monotonic() < until:
        sleep(0.01)

def learn(steps, folder):
    folder, attempt = Path(folder), int(os.environ["DSEC_ATTEMPT"])
    checkpoint = run.checkpoints(every=1000, replicated=True)
    state = checkpoint.restore({"sum": 0})

    def snapshot(step):
        (folder / "leaves").touch()
        wait((folder / "may leave").exists)
        checkpoint.save(step, state)

    run.on_evict(snapshot)
    for step in run.steps(steps):
        state["sum"] += 1
        gang.agree(0)  # the collective that a data-parallel step has
        line = {"rank": run.rank, "of": run.world_size, "step": step, "attempt": attempt, "sum": state["sum"]}
        with (folder / f"rank-{run.rank}").open("a") as file:
            file.write(json.dumps(line) + chr(10))
        if step == 1:
            checkpoint.save(step + 1, state)
        if step == 3 and attempt == 1:
            wait(lambda: run.notice is not None)
    checkpoint.save(steps, state)
    return state
"""


def trains(site: Site, **variables: Any) -> str:
    """A run that stays at step 3 until it is told to leave, and leaves when it may."""
    work = site.home / "work.py"
    work.write_text(WORK)
    folder = site.home / "training"
    folder.mkdir()
    return site.submit(
        FINETUNE,
        parameters={
            "model": "tiny", "function": f"{work}:learn", "launcher": "plain",
            "parameters": {"steps": STEPS, "folder": str(folder)},
        },
        grace=60,
        **variables,
    )  # fmt: skip


def steps_of(site: Site) -> list[dict[str, int]]:
    """The steps that rank 0 has begun, in all attempts."""
    path = site.home / "training" / "rank-0"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def committed(site: Site, run: str) -> Gang:
    gang: Gang = site.wait("its first commit", lambda: (g := site.gang(run)) and g.first_commit_at and g, 60)
    site.wait("it to be in its fourth step", lambda: len(steps_of(site)) == 4)
    return gang


def told(site: Site, run: str) -> Gang:
    gang = site.wait_gang(run, GangState.EVICTING)
    site.wait("it to have been told", (site.home / "training" / "leaves").exists)
    return gang


def outcomes(site: Site, run: str) -> list[str]:
    decisions = site.ledger.decisions(site.pool, run_id=run, limit=1000)
    return sorted(d.outcome for d in decisions if d.stage == "plan")


def test_a_moved_run_resumes_at_once_where_room_was_although_others_come_for_that_room(site: Site) -> None:
    site.ledger.put_policy(site.pool, {"consolidation": True}, by="ann", why="fragments")
    site.start_worker()
    stays = site.submit("sleeper", parameters={"where": str(site.home / "stays"), "seconds": 300}, devices_per_node=2,
                        preemptible=False, grace=1)  # fmt: skip
    home = site.wait_gang(stays, GangState.RUNNING).placement.members[0].node  # type: ignore[union-attr]
    goes = site.submit("sleeper", parameters={"where": str(site.home / "goes"), "seconds": 300}, devices_per_node=2,
                       preemptible=False, grace=1)  # fmt: skip
    beside = site.wait_gang(goes, GangState.RUNNING).placement
    assert beside is not None and beside.members[0].node == home, "the two share a node"
    mover = trains(site, nodes=1, devices_per_node=2)
    before = committed(site, mover)
    site.set_state(goes, "CANCELLING")
    site.wait_gang(goes, GangState.ENDED)

    big = site.submit("sleeper", parameters={"where": str(site.home / "big"), "seconds": 1}, devices_per_node=4)
    leaving = told(site, mover)
    assert leaving.resumes_at == beside, "what is left on the first node"
    newcomer = site.submit("hello", devices_per_node=2)
    site.wait("the newcomer to have been told to wait", lambda: (g := site.gang(newcomer)) and g.reason_code)
    (site.home / "training" / "may leave").touch()

    on_its_way = site.wait("its next attempt", lambda: (g := site.gang(mover)) and g.attempt == 2 and g)
    assert on_its_way.placement == beside
    site.wait_state(mover, "COMPLETED", "FAILED", "CRASHED", seconds=90)
    assert site.state(mover)[0] == "COMPLETED", site.logs(mover)
    for run in (big, newcomer):
        site.wait_state(run, "COMPLETED", seconds=60)
    seen = steps_of(site)
    assert [(row["step"], row["sum"]) for row in seen] == [(step, step + 1) for step in range(STEPS)], seen
    assert [row["attempt"] for row in seen] == [1] * 4 + [2] * 4
    ended = site.wait_gang(mover, GangState.ENDED)
    assert (ended.attempt, ended.evictions, ended.infrastructure_restarts) == (2, 1, 0)
    name = site.gang(big).name  # type: ignore[union-attr]
    told_it = f"Moves to make room for {name}; resumes from step 4 on {home}"
    assert told_it in site.messages(mover), site.messages(mover)
    assert not any(text.startswith("Preempted") for text in site.messages(mover) + site.logs(mover))
    assert outcomes(site, mover) == ["admit", "move"], "it never waited for another admission"
    assert before.placement is not None and before.placement.members[0].node != home
    site.set_state(stays, "CANCELLING")
    site.wait_gang(stays, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []


def test_a_shrunk_run_goes_on_with_what_it_keeps_although_its_worker_was_killed_meanwhile(site: Site) -> None:
    site.gpus = 1
    site.ledger.put_policy(site.pool, {"resizing": True}, by="ann", why="elastic")
    worker = site.start_worker()
    elastic = trains(site, nodes=2, min_nodes=1, devices_per_node=1)
    before = committed(site, elastic)
    assert before.placement is not None and len(before.placement.members) == 2

    urgent = site.submit("sleeper", parameters={"where": str(site.home / "urgent"), "seconds": 1}, devices_per_node=1,
                         priority=50)  # fmt: skip
    leaving = told(site, elastic)
    assert leaving.resumes_at is not None and leaving.resumes_at.members == before.placement.members[:1]
    site.stop_worker(worker, signal.SIGKILL)
    site.start_worker()
    (site.home / "training" / "may leave").touch()

    on_its_way = site.wait("its next attempt", lambda: (g := site.gang(elastic)) and g.attempt == 2 and g)
    assert on_its_way.placement == leaving.resumes_at
    site.wait_state(elastic, "COMPLETED", "FAILED", "CRASHED", seconds=90)
    assert site.state(elastic)[0] == "COMPLETED", site.logs(elastic)
    site.wait_state(urgent, "COMPLETED", seconds=60)
    seen = steps_of(site)
    assert [(row["step"], row["sum"]) for row in seen] == [(step, step + 1) for step in range(STEPS)], seen
    first = sum(row["attempt"] == 1 for row in seen)
    assert Counter((row["attempt"], row["of"]) for row in seen) == {(1, 2): first, (2, 1): STEPS - first}, seen
    name = site.gang(urgent).name  # type: ignore[union-attr]
    node = before.placement.members[0].node
    told_it = f"Shrinks from 2 to 1 node to make room for {name}; resumes from step {first} on {node}"
    assert told_it in site.messages(elastic), site.messages(elastic)
    assert outcomes(site, elastic) == ["admit", "shrink"]
    site.wait_gang(elastic, GangState.ENDED)
    site.wait_gang(urgent, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []
    assert Path(site.home / "urgent").read_text().splitlines()[-1].startswith("end")
