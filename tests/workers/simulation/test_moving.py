"""A policy that moves gangs, in a replay: who moves pays for it and nobody else does."""

from dataclasses import replace

from hypothesis import given, settings

from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.consolidation import to_come
from dsec_workers.simulation.jobs import Trace
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.policies import production
from dsec_workers.simulation.readers import incident
from dsec_workers.simulation.replay import Failure, Replay
from tests.workers.scheduling.world import NOW, cluster, node, running
from tests.workers.simulation.test_replay import _check, traces
from tests.workers.simulation.worlds import ends, job, replayed, starts, team, trace

MOVES = Policy(consolidation=True)
COST = Overheads(checkpoint_seconds=10.0, restart_seconds=30.0)
# Of three pairs on two nodes of four the first ends, and the two that are left have half a node each.
HALVES = (job("gone", 0, 400, "2"), job("b", 1, 5000, "2"), job("c", 2, 5000, "2"), job("four", 1000, 100, "4"))


def test_a_policy_that_moves_gangs_is_refused_by_a_replay() -> None:
    found = replayed(trace(*HALVES), "2x4", "dsec", policy=MOVES, overheads=COST)
    assert starts(found)["four"] == 1010.0, "once the other has written its checkpoint"
    moved = [found.outcomes[id] for id in ("b", "c") if found.outcomes[id].evictions]
    assert len(moved) == 1 and moved[0].attempts == 2
    assert moved[0].finished_at == moved[0].job.submit_at + 5000 + 10 + 30
    assert moved[0].lost_device_seconds == 2 * 10, "its restart is held, and is no loss"
    _check(found, COST)
    still = replayed(trace(*HALVES), "2x4", "dsec", policy=Policy(), overheads=COST)
    assert starts(still)["four"] == 5001.0


def test_a_node_that_fails_while_a_gang_is_on_its_way_there_sends_it_back_into_the_line() -> None:
    for name in ("node-0", "node-1"):
        failures = [Failure(name, 1005.0, 50.0)]
        found = replayed(trace(*HALVES), "2x4", "dsec", policy=MOVES, overheads=COST, failures=failures)
        assert all(outcome.finished_at is not None for outcome in found.outcomes.values())
        assert sum(outcome.failures for outcome in found.outcomes.values()) >= 1


def test_an_incident_is_caught_while_a_gang_moves_and_the_gang_goes_on_twice() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    moving = running("m", "n2/0-1", evicting=True, evicting_for="four", max_runtime_seconds=20_000.0)
    (member,) = moving.placement.members
    place = replace(moving.placement, members=(replace(member, node="n1", devices=("n1/0", "n1/1")),))
    held = [moving, to_come(moving, place, since=NOW), running("four", "n2/0-3", promised=True, ran=0.0)]
    policy = Policy(consolidation=True)
    what = incident.read("captured", cluster(nodes, held), [], policy, now=NOW)
    assert sorted(each.id for each in what.jobs) == ["four", "m"]
    known = {name: team(name, 1000) for name in "ab"}
    found = Replay(
        what, nodes, production(nodes, known, policy, overheads=COST, beginning=what.beginning), overheads=COST
    )
    outcomes = found.run().outcomes
    assert (outcomes["m"].attempts, outcomes["m"].evictions) == (2, 1)
    stays = [(span.attempt, span.seats) for span in found.recording.spans if span.id == "m"]
    assert stays == [(1, ((1, 3),)), (2, ((0, 3),))]
    assert outcomes["four"].finished_at is not None


@settings(max_examples=25, deadline=None)
@given(what=traces())
def test_whoever_moves_every_job_ends_and_every_second_is_accounted_for(what: Trace) -> None:
    cost = Overheads(checkpoint_seconds=7.0, restart_seconds=20.0)
    teams = [team("a", 6), team("b", 2)]
    policy = Policy(consolidation=True, move_interval_seconds=100.0, min_run_seconds=10.0)
    fitting = [each for each in what.jobs if each.request.preemptible or each.request.devices <= 2]
    found = replayed(
        Trace(name="random", jobs=tuple(fitting)), "3x4", "dsec", teams=teams, overheads=cost, policy=policy
    )
    _check(found, cost)
    assert set(ends(found)) == {each.id for each in fitting}
