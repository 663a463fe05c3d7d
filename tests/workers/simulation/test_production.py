"""`plan()` in a replay: asked only when it matters, and then with what the worker would have given it."""

import dataclasses

import pytest
from hypothesis import given, settings

import dsec_workers.simulation.production as production_module
from dsec_blocks.ledger.arrivals import Arrivals
from dsec_workers.lifecycle.records import seen
from dsec_workers.scheduling import Policy, Snapshot
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.jobs import Trace
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.production import Production
from dsec_workers.simulation.replay import Replay
from tests.workers.simulation.test_replay import traces
from tests.workers.simulation.worlds import ends, job, replayed, starts, team, trace


def test_a_job_like_one_that_was_just_refused_asks_no_second_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    real = production_module.plan

    def counted(*values: object, **named: object) -> object:
        asked.append(values[3])  # type: ignore[arg-type]
        return real(*values, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(production_module, "plan", counted)
    first = job("first", 0, 10_000, "8", preemptible=False)
    request = job("x", 0, 1, "8").request
    others = [dataclasses.replace(job(f"j{n}", 1000.0 + n, 10, "8"), request=request) for n in range(20)]
    nodes = parse_cluster("1x8")
    scheduler = Production(nodes, {"a": team("a", 100)}, Policy(), overheads=Overheads())
    found = Replay(trace(first, *others), nodes, scheduler).run()
    assert all(outcome.finished_at is not None for outcome in found.outcomes.values())
    assert [at for at in asked if 1001.0 <= at < 1020.0] == []


def test_the_head_of_line_starts_as_the_contract_ends_that_it_waits_for_although_somebody_passed_it() -> None:
    lasting = job("lasting", 0, 9000, "2x4", max_runtime_seconds=9000.0, preemptible=False)
    short = job("short", 0, 3000, "4", max_runtime_seconds=3000.0, preemptible=False)
    head = job("head", 10, 100, "3x4", preemptible=False)
    passer = job("passer", 3100, 20_000, "4", grace_seconds=60.0)
    overheads = Overheads(checkpoint_seconds=60.0, restart_seconds=0.0)
    found = replayed(trace(lasting, short, head, passer), "3x4", "dsec", overheads=overheads)
    assert starts(found)["passer"] == 3100.0
    assert starts(found)["head"] == ends(found)["lasting"]
    assert found.outcomes["passer"].evictions == 1


def _crowd() -> Trace:
    """Sixty jobs of two teams, of six shapes, more than the cluster holds."""
    shapes = ("1", "1", "2", "4", "8", "2x8")
    return trace(
        *(
            job(
                f"j{n:03}", n * 13.0, 40.0 + n * 97 % 1700, shapes[n * 7 % 6],
                team="ab"[n % 3 % 2], priority=n % 11 // 10,
            )
            for n in range(60)
        )
    )  # fmt: skip


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.slow
def test_a_replay_is_the_same_whether_the_planner_remembers_or_not(
    monkeypatch: pytest.MonkeyPatch, sharing: bool
) -> None:
    what, nodes, remembered = _crowd(), parse_cluster("4x8"), set()
    teams = {"a": team("a", 16), "b": team("b", 16)}
    policy = Policy(time_sharing=sharing)
    real = production_module.plan

    def forgetful(*values: object, memory: object = None) -> object:
        remembered.add(id(memory))
        return real(*values)  # type: ignore[arg-type]

    first = Replay(what, nodes, Production(nodes, teams, policy, overheads=Overheads())).run()
    monkeypatch.setattr(production_module, "plan", forgetful)
    second = Replay(what, nodes, Production(nodes, teams, policy, overheads=Overheads())).run()
    assert len(remembered) == 1 and id(None) not in remembered
    assert sum(outcome.evictions for outcome in first.outcomes.values()) > 0
    assert first.spans == second.spans


def test_plan_is_told_what_has_arrived_as_the_ledger_would_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Snapshot] = []
    real = production_module.plan

    def heard(snapshot: Snapshot, *values: object, **named: object) -> object:
        told.append(snapshot)
        return real(snapshot, *values, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(production_module, "plan", heard)
    what = trace(job("long", 0, 5000, "8"), job("two", 5, 9, "2x4"), job("one", 10, 9, "4", priority=9))
    replayed(what, "2x8", "dsec")
    arrived = Arrivals().after([j.request for j in what.jobs])
    assert dict(told[-1].seen) == seen(arrived)
    assert sorted((shape.devices, round(weight, 2)) for shape, weight in told[-1].seen.items()) == [(4, 3.0), (8, 1.0)]


def test_a_gang_that_has_committed_is_evicted_before_its_minimum_run_and_costs_what_it_would_do_again() -> None:
    cost = Overheads(checkpoint_seconds=10.0, restart_seconds=0.0, interval_seconds=90.0, snapshot_on_evict=False)
    policy = Policy(min_run_seconds=3600.0)
    what = trace(job("low", 0, 1000, "8"), job("high", 20, 50, "8", priority=50))
    found = replayed(what, "1x8", "dsec", overheads=cost, policy=policy)
    # The first commit is written after 90 s of work and 10 s of the commit; then 10 s to leave.
    assert starts(found)["high"] == 110.0
    cheap = trace(job("old", 0, 1000, "8"), job("new", 60, 1000, "8"), job("high", 195, 50, "8", priority=50))
    found = replayed(cheap, "2x8", "dsec", overheads=cost, policy=policy)
    # At 195 s the old one has committed at 100 s and stakes 95 s, the new one at 160 s and stakes 35 s.
    assert {id for id, outcome in found.outcomes.items() if outcome.evictions} == {"new"}


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [False, True])
@settings(max_examples=30, deadline=None)
@given(what=traces())
def test_not_asking_when_the_answer_is_known_changes_no_decision(sharing: bool, what: Trace) -> None:
    class Always(Production):
        """Asks at every instant."""

        def decide(self, site, now):  # type: ignore[no-untyped-def]
            self._dirty = True
            return super().decide(site, now)

    nodes = parse_cluster("2x4")
    policy = Policy(time_sharing=sharing, level_device_seconds=(200.0, 1000.0, 4000.0))
    teams = {"a": team("a", 6), "b": team("b", 2)}
    recordings = [
        Replay(what, nodes, kind(nodes, teams, policy, overheads=Overheads())).run() for kind in (Production, Always)
    ]
    assert recordings[0].spans == recordings[1].spans


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(what=traces())
def test_estimates_for_people_change_no_decision(what: Trace) -> None:
    nodes = parse_cluster("2x4")
    teams = {"a": team("a", 6), "b": team("b", 2)}
    recordings = [
        Replay(
            what,
            nodes,
            Production(nodes, teams, dataclasses.replace(Policy(), eta_positions=count), overheads=Overheads()),
        ).run()
        for count in (0, 20)
    ]
    assert recordings[0].spans == recordings[1].spans
