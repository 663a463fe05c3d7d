"""`plan()` in a replay: asked only when it matters, and then with what the worker would have given it."""

import dataclasses

import pytest
from hypothesis import given, settings

import dsec_workers.simulation.production as production_module
from dsec_workers.scheduling import Policy
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

    def counted(*values: object) -> object:
        asked.append(values[3])  # type: ignore[arg-type]
        return real(*values)  # type: ignore[arg-type]

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


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(what=traces())
def test_not_asking_when_the_answer_is_known_changes_no_decision(what: Trace) -> None:
    class Always(Production):
        """Asks at every instant."""

        def decide(self, site, now):  # type: ignore[no-untyped-def]
            self._dirty = True
            return super().decide(site, now)

    nodes = parse_cluster("2x4")
    teams = {"a": team("a", 6), "b": team("b", 2)}
    recordings = [
        Replay(what, nodes, kind(nodes, teams, Policy(), overheads=Overheads())).run() for kind in (Production, Always)
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
