"""A policy that resizes gangs, in a replay: elastic jobs shrink for others and grow back, and pay for it each time."""

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.ledger import Ledger, Resumption
from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_workers.lifecycle.mirror import Mirror
from dsec_workers.lifecycle.orders import Orders
from dsec_workers.lifecycle.plan_input import facts_of, snapshot_of
from dsec_workers.scheduling import Policy, RunningGang, build_snapshot
from dsec_workers.scheduling.consolidation import to_come
from dsec_workers.simulation import measures
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.production import Production
from dsec_workers.simulation.readers import incident, pool
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Failure, Replay
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger
from tests.workers.simulation.test_production import _crowd
from tests.workers.simulation.test_replay import traces
from tests.workers.simulation.worlds import SCHEDULERS, ends, job, replayed, starts, team, trace

SIZES = Policy(resizing=True, move_interval_seconds=200.0, min_run_seconds=100.0)
COST = Overheads(checkpoint_seconds=10.0, restart_seconds=30.0)
ELASTIC = job("e", 0, 1000, "2x4", min_nodes=1)
URGENT = job("urgent", 400, 100, "4", priority=50)
POOL = "simulated"


def test_an_elastic_gang_shrinks_for_another_and_grows_back() -> None:
    found = replayed(trace(ELASTIC, URGENT), "2x4", "dsec", policy=SIZES, overheads=COST)
    # Told at 400 s; on one node from 410 s, which does half the work of a second from 440 s on. It may be asked again
    # at 600 s, when 80 of the 600 s that were left are done: told, gone at 610 s, and 520 s are left from 640 s on.
    assert ends(found) == {"urgent": 510.0, "e": 640.0 + 520.0}
    assert [(span.start, span.end, len(span.seats)) for span in found.spans if span.id == "e"] == [
        (0.0, 410.0, 2), (410.0, 610.0, 1), (610.0, 1160.0, 2),
    ]  # fmt: skip
    elastic = found.outcomes["e"]
    assert (elastic.attempts, elastic.evictions, elastic.resizes) == (3, 2, 2)
    assert elastic.lost_device_seconds == 8 * 10 + 4 * (30 + 10), "the last restart is held, and is no loss"
    assert elastic.resize_device_seconds == (8 * 10 + 4 * 30) + (4 * 10 + 8 * 30)
    assert elastic.held_device_seconds == 8 * 1000 + elastic.lost_device_seconds + 8 * 30
    told = measures.figures(found)
    assert (told["resizes"], told["resize_device_hours"]) == (2, 480 / 3600)


def test_a_part_of_the_work_that_more_nodes_do_not_make_faster_is_not_slowed_down_by_fewer() -> None:
    slow = replace(ELASTIC, serial_fraction=0.5)
    found = replayed(trace(slow, URGENT), "2x4", "dsec", policy=SIZES, overheads=COST)
    # Two members are 4/3 as fast as one: of the 160 s at the smaller size 120 count.
    assert ends(found)["e"] == 640.0 + 480.0


def test_without_a_policy_that_resizes_it_starts_in_what_is_free_and_keeps_that_size() -> None:
    held = job("held", 0, 2000, "4", preemptible=False)
    found = replayed(trace(held, replace(ELASTIC, submit_at=1.0)), "2x4", "dsec", policy=Policy(), overheads=COST)
    assert ends(found) == {"held": 2000.0, "e": 1.0 + 2 * 1000.0}
    grown = replayed(trace(replace(held, duration=500), replace(ELASTIC, submit_at=1.0)), "2x4", "dsec",
                     policy=SIZES, overheads=COST)  # fmt: skip
    # From 500 s on there is room: 249.5 of its 1000 s are done, and nobody has asked it for anything lately.
    assert ends(grown)["e"] == 500 + 10 + 30 + 1000 - 249.5


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "dsec"])
def test_a_baseline_gives_it_its_full_size_and_leaves_it_that(scheduler: str) -> None:
    found = replayed(trace(ELASTIC, job("other", 1, 100, "4")), "2x4", scheduler)
    assert {len(span.seats) for span in found.spans if span.id == "e"} == {2}
    assert found.outcomes["e"].resizes == 0
    wide = replayed(trace(job("wide", 0, 100, "3x4", min_nodes=1)), "2x4", scheduler)
    assert wide.outcomes["wide"].refused == "3×4 GPUs never fits this cluster"


def test_one_whose_full_size_never_fits_starts_with_what_there_is() -> None:
    found = replayed(trace(job("wide", 0, 100, "3x4", min_nodes=2)), "2x4", "dsec")
    assert ends(found) == {"wide": 150.0} and found.outcomes["wide"].refused is None
    found = replayed(trace(job("wide", 0, 100, "4x4", min_nodes=3)), "2x4", "dsec")
    assert found.outcomes["wide"].refused == "4×4 GPUs never fits this cluster"


def test_a_resizing_policy_changes_nothing_where_nobody_is_elastic() -> None:
    teams = [team("a", 16), team("b", 16)]
    for policy in (Policy(), Policy(time_sharing=True), Policy(consolidation=True, evictions_per_team=3)):
        found = [
            replayed(_crowd(), "4x8", "dsec", teams=teams, policy=replace(policy, resizing=resizing))
            for resizing in (False, True)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("at", [405.0, 605.0])
@pytest.mark.parametrize("name", ["node-0", "node-1"])
def test_a_node_that_fails_while_a_gang_is_resized_sends_it_back_into_the_line(name: str, at: float) -> None:
    found = replayed(trace(ELASTIC, URGENT), "2x4", "dsec", policy=SIZES, overheads=COST,
                     failures=[Failure(name, at, 50.0)])  # fmt: skip
    assert all(outcome.finished_at is not None for outcome in found.outcomes.values())
    assert sum(outcome.failures for outcome in found.outcomes.values()) >= 1


# ---- as the worker carries it out -------------------------------------------------------------------------------

SAME = (
    "run_id", "team", "request", "placement", "submitted_at", "started_at", "first_commit_at", "last_commit_at",
    "evictions", "evicting", "evicting_for", "promised", "conditional_until", "moved_at", "attained_seconds",
)  # fmt: skip


def _told(gang: RunningGang) -> dict[str, object]:
    return {field.name: getattr(gang, field.name) for field in fields(gang) if field.name in SAME}


class _Worker:
    """What the ledger says when the same decisions are carried out on it."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        self.ledger, self.clock = ledger, clock
        fence = ledger.take_lease(POOL, "test", seen=None)
        assert fence is not None
        self.fence, self.nodes = fence, parse_cluster("2x4")
        ledger.put_nodes(fence, self.nodes)
        self.mirror = Mirror(ledger, POOL)

    def line_up(self, what: Job) -> None:
        gang = Gang(
            run_id=what.id, name=what.id, pool=POOL, team=what.team, request=what.request, state=GangState.WAITING,
            submitted_at=what.submit_at, eligible_at=what.submit_at,
        )  # fmt: skip
        self.ledger.enqueue(self.fence, [gang])

    def starts(self, run_id: str, attempt: int) -> None:
        self.ledger.claimed(self.fence, run_id, attempt, user_retries=None)
        self.ledger.started(self.fence, run_id, attempt, self.clock.now())

    def leaves_and_goes_on(self, run_id: str, attempt: int) -> None:
        self.ledger.leave(self.fence, run_id, attempt, {"kind": "evicted", "at": self.clock.now()})
        assert self.ledger.requeue(self.fence, run_id, attempt, evicted=True, resume_by=10_000.0)
        self.starts(run_id, attempt + 1)

    def seen(self) -> dict[str, dict[str, object]]:
        now = self.clock.now()
        view, _ = self.mirror.refresh(now)
        facts = facts_of(self.ledger, POOL, now=now, policy=SIZES, nodes=self.nodes, view=view, orders=Orders())
        return {gang.run_id: _told(gang) for gang in snapshot_of(facts).gangs()}


def test_what_a_resize_leaves_behind_is_what_the_ledger_would_say(tmp_path: Path) -> None:
    nodes = parse_cluster("2x4")
    scheduler = Production(nodes, {"a": team("a", 1000)}, SIZES, overheads=COST)
    replay = Replay(trace(ELASTIC, URGENT), nodes, scheduler, overheads=COST)
    clock = ManualClock(0.0)
    worker = _Worker(new_ledger(tmp_path / "ledger.db", clock=clock), clock)
    steps, compared = replay.steps(), []
    while (now := next(steps, None)) is not None:
        clock.advance(now - clock.now())
        if now == 0.0:
            worker.line_up(ELASTIC)
            worker.ledger.admit(worker.fence, "e", scheduler.plan.admits[0].placement, expires_at=100.0)
            worker.starts("e", 1)
        elif now == 400.0:
            worker.line_up(URGENT)
            [admit], [shrunk] = scheduler.plan.admits, scheduler.plan.admits[0].resizes
            place = Resumption(run_id="e", placement=shrunk.placement, why="shrinks", expires_at=1000.0)
            worker.ledger.admit(worker.fence, "urgent", admit.placement, victims=["e"], expires_at=1000.0,
                                resumptions=[place])  # fmt: skip
        elif now == 410.0:
            worker.leaves_and_goes_on("e", 1)
            worker.starts("urgent", 1)
        elif now == 510.0:
            worker.ledger.leave(worker.fence, "urgent", 1, {"kind": "exited", "at": now})
            worker.ledger.end(worker.fence, "urgent", 1, final_state="Completed")
        elif now == 600.0:
            [growth] = scheduler.plan.growths
            place = Resumption(run_id="e", placement=growth.placement, why="grows", expires_at=1000.0)
            assert worker.ledger.evict(worker.fence, ["e"], why="grows", for_run="e", resumption=place) == ["e"]
        elif now == 610.0:
            worker.leaves_and_goes_on("e", 2)
        else:
            continue
        told = worker.seen()
        assert {run_id: _told(scheduler._record(run_id)) for run_id in told} == told, now
        compared.append((now, sorted(told)))
    coming = ["e", "e (to come)"]
    assert compared == [
        (0.0, ["e"]), (400.0, [*coming, "urgent"]), (410.0, ["e", "urgent"]), (510.0, ["e"]), (600.0, coming),
        (610.0, ["e"]),
    ]  # fmt: skip


def test_the_pools_own_history_counts_an_elastic_run_by_its_device_seconds() -> None:
    request = ELASTIC.request
    gang = Gang(run_id="e", name="e", pool=POOL, team="a", request=request, state=GangState.ENDED,
                submitted_at=0.0, eligible_at=0.0)  # fmt: skip

    def entry(at: float, stage: str, outcome: str, nodes: int = 0) -> Decision:
        members = [{"node": f"node-{n}", "devices": []} for n in range(nodes)]
        return Decision(at=at, pool=POOL, run_id="e", stage=stage, outcome=outcome, why="",
                        detail={"placement": members} if nodes else {})  # fmt: skip

    history = [
        entry(0, "plan", "admit", 2), entry(0, "launch", "launched"), entry(400, "plan", "shrink", 1),
        entry(410, "end", "requeued"), entry(420, "launch", "launched"),
        entry(600, "plan", "grow", 2), entry(610, "end", "requeued"),  # but its place was given up
        entry(700, "plan", "admit", 2), entry(710, "launch", "launched"), entry(1000, "end", "Completed"),
    ]  # fmt: skip
    what = pool.read("own", [gang], history, {"a": team("a", 8)}, now=2000.0)
    assert [each.duration for each in what.jobs] == [410 + 200 / 2 + 300]
    again = trace(*what.jobs, replace(URGENT, submit_at=400.0))
    found = replayed(again, "2x4", "dsec", policy=SIZES, overheads=COST)
    # As above, but 810 s long instead of 1000 s.
    assert ends(found)["e"] == 640.0 + 520.0 - 190.0 and found.outcomes["e"].resizes == 2


@pytest.mark.parametrize("grows", [False, True])
def test_an_incident_is_caught_while_a_gang_is_resized_and_it_goes_on_at_that_size(grows: bool) -> None:
    nodes = parse_cluster("2x4")
    members = tuple(MemberPlacement(node=n.name, devices=tuple(d.uuid for d in n.devices)) for n in nodes)
    small, large = Placement(members=members[:1]), Placement(members=members)
    request = replace(ELASTIC.request, max_runtime_seconds=1000.0)
    leaving = RunningGang(
        run_id="e", team="a", request=request, placement=small if grows else large, submitted_at=0.0, started_at=0.0,
        evicting=True, evicting_for="e" if grows else "urgent", moved_at=500.0,
    )  # fmt: skip
    held = [leaving, to_come(leaving, large if grows else small, since=500.0)]
    if not grows:
        held.append(
            RunningGang(run_id="urgent", team="a", request=replace(URGENT.request, max_runtime_seconds=100.0),
                        placement=Placement(members=members[1:]), submitted_at=400.0, started_at=500.0, promised=True)
        )  # fmt: skip
    snapshot = build_snapshot(nodes=nodes, running=held, teams={"a": team("a", 1000)}, pool=POOL)
    what = incident.read("captured", snapshot, [], SIZES, now=500.0)
    # It would end after 500 s more at the size it has.
    assert next(each.duration for each in what.jobs if each.id == "e") == (250.0 if grows else 500.0)
    chosen = Production(nodes, {"a": team("a", 1000)}, SIZES, overheads=COST, beginning=what.beginning)
    found = Replay(what, nodes, chosen, overheads=COST).run()
    stays = [(span.start, len(span.seats)) for span in found.spans if span.id == "e"]
    assert stays[:2] == ([(500.0, 1), (510.0, 2)] if grows else [(500.0, 2), (510.0, 1)])
    assert found.outcomes["e"].resizes == (1 if grows else 2), "and grows back, once the other has ended"
    assert all(outcome.finished_at is not None for outcome in found.outcomes.values())


# ---- whatever comes ---------------------------------------------------------------------------------------------


@st.composite
def elastic_traces(draw: st.DrawFn) -> Trace:
    """Random traces in which every other gang or so is elastic."""
    jobs = []
    for each in draw(traces()).jobs:
        nodes = draw(st.integers(1, 3))
        if nodes > 1:
            request = replace(each.request, nodes=nodes, min_nodes=draw(st.integers(1, nodes)))
            each = replace(each, request=request)
        jobs.append(each)
    kept = [each for each in jobs if each.request.preemptible or each.request.devices <= 2]
    return Trace(name="random", jobs=arrange(kept))


def check(found: Recording, cost: Overheads) -> None:
    """Work is conserved: every device-second that was held was work, or is told as lost, or was the last restart."""
    for outcome in found.outcomes.values():
        assert outcome.finished_at is not None
        stays = [span for span in found.spans if span.id == outcome.job.id]
        each = outcome.job.request.devices_per_node
        last = cost.restart_seconds * len(stays[-1].seats) * each if outcome.attempts > 1 else 0.0
        work = outcome.job.duration * outcome.job.request.devices
        assert outcome.held_device_seconds == pytest.approx(work + outcome.lost_device_seconds + last)
        least = outcome.job.request.min_nodes or outcome.job.request.nodes
        assert all(least <= len(span.seats) <= outcome.job.request.nodes for span in stays)
        assert outcome.resizes <= sum(len(a.seats) != len(b.seats) for a, b in pairwise(stays))
        assert outcome.resize_device_seconds <= outcome.lost_device_seconds + last + 1e-6
    for left, right in ((a, b) for a in found.spans for b in found.spans if a is not b):
        if left.start < right.end and right.start < left.end:
            assert not any(n == m and x & y for n, x in left.seats for m, y in right.seats), (left, right)


CHANGES = Policy(resizing=True, consolidation=True, move_interval_seconds=100.0, min_run_seconds=10.0, growth_worth=1.0)


@settings(max_examples=40, deadline=None)
@given(what=elastic_traces(), sharing=st.booleans())
def test_whoever_is_resized_every_job_ends_and_no_work_is_lost_or_made_up(what: Trace, sharing: bool) -> None:
    cost = Overheads(checkpoint_seconds=7.0, restart_seconds=20.0)
    policy = replace(CHANGES, time_sharing=sharing, level_device_seconds=(200.0, 1000.0, 4000.0))
    found = replayed(what, "3x4", "dsec", teams=[team("a", 8), team("b", 4)], overheads=cost, policy=policy)
    check(found, cost)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(what=elastic_traces())
def test_not_asking_when_the_answer_is_known_changes_no_size(what: Trace) -> None:
    class Always(Production):
        """Asks at every instant."""

        def decide(self, site, now):  # type: ignore[no-untyped-def]
            self._dirty = True
            return super().decide(site, now)

    nodes, teams = parse_cluster("3x4"), {"a": team("a", 8), "b": team("b", 4)}
    recordings = [
        Replay(what, nodes, kind(nodes, teams, CHANGES, overheads=COST)).run() for kind in (Production, Always)
    ]
    assert recordings[0].spans == recordings[1].spans
    assert starts(recordings[0]) == starts(recordings[1])
