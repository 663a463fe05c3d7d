"""The event loop: what it charges, what it records, and what no scheduler can talk it into."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.jobs import Job, Trace, Waiting, arrange
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Failure, Replay
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import NotFree, Site
from tests.workers.simulation.worlds import SCHEDULERS, ends, job, replayed, starts, team, trace

FREE = Overheads(checkpoint_seconds=0.0, restart_seconds=0.0)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_jobs_that_fit_side_by_side_wait_for_nothing(scheduler: str) -> None:
    found = replayed(trace(job("x", 0, 100, "4"), job("y", 5, 100, "4")), "1x8", scheduler)
    assert ends(found) == {"x": 100.0, "y": 105.0}
    assert [outcome.wait for outcome in found.outcomes.values()] == [0.0, 0.0]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_never_fits_is_refused_and_blocks_nobody(scheduler: str) -> None:
    found = replayed(trace(job("big", 0, 100, "2x8"), job("small", 1, 10, "1")), "1x8", scheduler)
    assert found.outcomes["big"].refused == "2×8 GPUs never fits this cluster"
    assert ends(found) == {"big": None, "small": 11.0}


def test_an_evicted_job_pays_checkpoint_and_restart_and_loses_no_work() -> None:
    long, urgent = job("long", 0, 1000, "8"), job("urgent", 400, 100, "8", priority=50)
    cost = Overheads(checkpoint_seconds=10.0, restart_seconds=30.0)
    found = replayed(trace(long, urgent), "1x8", "dsec", overheads=cost)
    # 400 s of work, 10 s of checkpoint, 100 s of the other, 30 s of restart, 600 s of work.
    assert ends(found) == {"urgent": 510.0, "long": 1140.0}
    assert found.outcomes["long"].evictions == 1
    assert found.outcomes["long"].lost_device_seconds == 8 * 10.0
    assert found.outcomes["long"].wait == 140.0


def test_a_job_that_leaves_is_charged_for_as_long_as_it_keeps_its_devices() -> None:
    long, urgent = job("long", 0, 1000, "8"), job("urgent", 400, 100, "8", priority=50)
    found = replayed(trace(long, urgent), "1x8", "dsec", tick=60.0)
    # Told at 420 s; its 10 s of checkpoint are over at the end of that minute, when the other one begins.
    assert starts(found)["urgent"] == 480.0
    assert found.outcomes["long"].lost_device_seconds == 8 * 60.0
    assert found.outcomes["long"].held_device_seconds == 8 * (1000.0 + 60.0 + 30.0)


def test_without_a_snapshot_work_since_the_last_commit_is_done_again() -> None:
    cost = Overheads(checkpoint_seconds=10.0, restart_seconds=0.0, interval_seconds=300.0, snapshot_on_evict=False)
    found = replayed(trace(job("long", 0, 1000, "8"), job("urgent", 400, 100, "8", priority=50)), "1x8", "dsec",
                     overheads=cost)  # fmt: skip
    # 300 s are safe; then 10 s of the commit and 90 s of work that is done again.
    assert found.outcomes["long"].lost_device_seconds == 8 * (100.0 + 10.0)
    assert ends(found)["long"] == 510.0 + 700.0 + 2 * 10.0


def test_a_node_that_fails_takes_its_gangs_back_to_their_last_commit() -> None:
    cost = Overheads(checkpoint_seconds=0.0, restart_seconds=30.0, interval_seconds=100.0)
    found = replayed(trace(job("x", 0, 500, "8")), "1x8", "fifo", overheads=cost,
                     failures=[Failure("node-0", 250.0, 60.0)])  # fmt: skip
    assert found.outcomes["x"].failures == 1
    assert ends(found) == {"x": 310.0 + 30.0 + 300.0}


def test_a_node_that_is_down_takes_no_work() -> None:
    found = replayed(trace(job("x", 10, 5, "8")), "1x8", "dsec", failures=[Failure("node-0", 5.0, 60.0)])
    assert starts(found) == {"x": 65.0}


def test_what_happens_within_a_tick_is_decided_at_its_end() -> None:
    found = replayed(trace(job("x", 1, 100, "1")), "1x8", "fifo", tick=60.0)
    assert starts(found) == {"x": 60.0}
    assert ends(found) == {"x": 160.0}


class _Cheat:
    """Gives the same device to everybody."""

    name, time_shares, elastic = "cheat", False, False

    def __init__(self) -> None:
        self.line: list[str] = []

    def arrived(self, job: Waiting, now: float) -> None:
        self.line.append(job.id)

    def adopted(self, job: Waiting, seats: object, now: float, **told: bool) -> None: ...

    def began(self, id: str, now: float) -> None: ...

    def left(self, id: str, now: float, *, finished: bool) -> None: ...

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        found, self.line = [Start(id=id, seats=((0, 1),)) for id in self.line], []
        return found

    def wake_at(self) -> float | None:
        return None


def test_a_scheduler_that_gives_a_device_twice_ends_the_replay() -> None:
    replay = Replay(trace(job("x", 0, 9, "1"), job("y", 1, 9, "1")), parse_cluster("1x2"), _Cheat())
    with pytest.raises(NotFree, match="node-0"):
        replay.run()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_runs_already_keeps_its_devices_and_then_makes_room(scheduler: str) -> None:
    nodes = parse_cluster("1x8")
    there = Placement(members=(MemberPlacement(node="node-0", devices=tuple(f"node-0/{n}" for n in range(2, 8))),))
    what = trace(job("old", 0, 500, "6"), job("small", 0, 50, "2"), job("big", 1, 10, "8"))
    found = replayed(dataclasses.replace(what, placed={"old": there}), "1x8", scheduler)
    assert len(nodes) == 1
    assert starts(found) == {"old": 0.0, "small": 0.0, "big": 500.0}
    assert next(span.seats for span in found.spans if span.id == "old") == ((0, 0b11111100),)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    jobs = [
        Job(
            id=f"j{number:02}",
            team=draw(st.sampled_from("ab")),
            request=GangRequest(
                nodes=draw(st.sampled_from([1, 1, 1, 2])),
                devices_per_node=draw(st.integers(1, 4)),
                priority=draw(st.sampled_from([0, 0, 0, 5])),
                preemptible=draw(st.integers(0, 4)) > 0,
            ),
            submit_at=float(draw(st.integers(0, 2000))),
            duration=float(draw(st.integers(1, 3000))),
        )
        for number in range(draw(st.integers(1, 9)))
    ]
    return Trace(name="random", jobs=arrange(jobs))


def _check(found: Recording, cost: Overheads) -> None:
    for outcome in found.outcomes.values():
        assert outcome.finished_at is not None
        assert outcome.jct is not None
        assert outcome.jct >= outcome.job.duration
        work = outcome.job.duration * outcome.job.request.devices
        again = outcome.evictions * outcome.job.request.devices
        # Every device-second that was held was work, or is told as lost; restarts may be cut short.
        assert outcome.held_device_seconds == pytest.approx(
            work + outcome.lost_device_seconds + _restart(outcome, cost)
        )
        assert outcome.lost_device_seconds <= again * (cost.checkpoint_seconds + cost.restart_seconds) + 1e-6
    for left, right in ((a, b) for a in found.spans for b in found.spans if a is not b):
        if left.start < right.end and right.start < left.end:
            assert not any(n == m and x & y for n, x in left.seats for m, y in right.seats), (left, right)


def _restart(outcome: object, cost: Overheads) -> float:
    """The last attempt's restart is held, and is no work; those before are counted when they are interrupted."""
    from dsec_workers.simulation.recording import Outcome

    assert isinstance(outcome, Outcome)
    return cost.restart_seconds * outcome.job.request.devices if outcome.attempts > 1 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=30, deadline=None)
@given(what=traces())
def test_every_job_ends_no_device_is_held_twice_and_every_second_is_accounted_for(scheduler: str, what: Trace) -> None:
    cost = Overheads(checkpoint_seconds=7.0, restart_seconds=20.0)
    teams = [team("a", 6), team("b", 2)]
    fitting = [j for j in what.jobs if scheduler != "dsec" or j.request.preemptible or j.request.devices <= 2]
    found = replayed(Trace(name="random", jobs=tuple(fitting)), "2x4", scheduler, teams=teams, overheads=cost)
    _check(found, cost)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_replay_given_again_tells_the_same(scheduler: str) -> None:
    what = trace(*(job(f"j{n}", n * 37.0, 100.0 + n * 13, ("1", "4", "8")[n % 3], team="ab"[n % 2]) for n in range(30)))
    first, second = (replayed(what, "2x8", scheduler) for _ in range(2))
    assert first.spans == second.spans
