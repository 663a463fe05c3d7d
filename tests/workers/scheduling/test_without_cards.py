"""Gangs that ask for no GPU: a line of their own, whose head is kept a place as the head of any other line is."""

from dataclasses import replace

import pytest

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling import Policy, RunningGang, Shadow
from tests.workers.scheduling.world import (
    NOW,
    admitted,
    carry_out,
    cluster,
    decide,
    node,
    running,
    team,
    texts,
    waiting,
)

HOUR = 3600.0


def machine(name, cpus, gpus=2, **more):
    return replace(node(name, gpus, **more), cpus=float(cpus))


def busy(run_id, *nodes, cpus, left=HOUR, **more):
    """A gang without cards that ends by contract after `left` seconds; None: it has none."""
    limit = None if left is None else left + 60.0
    return RunningGang(
        run_id=run_id,
        team=more.pop("team", "a"),
        request=GangRequest(nodes=len(nodes), cpus=cpus, max_runtime_seconds=limit, **more),
        placement=Placement(members=tuple(MemberPlacement(node=name) for name in nodes)),
        submitted_at=NOW - 60.0,
        started_at=NOW - 60.0,
    )


def cpu(run_id, cpus, *, nodes=1, waited=60.0, **more):
    return waiting(run_id, f"{nodes}x0", cpus=cpus, waited=waited, **more)


TEN = [machine("n1", 10)]
LARGE = cpu("large", 8.0, waited=900.0)


def starts(result):
    return {shadow.run_id: shadow.start - NOW for shadow in result.shadows}


def test_a_large_gang_without_cards_is_passed_for_ever_by_small_ones():
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0)])
    small = [cpu("no-end", 4.0), cpu("longer", 3.0, max_runtime_seconds=2 * HOUR), cpu("beside", 2.0)]
    result = decide(snapshot, LARGE, *small)
    assert starts(result) == {"large": HOUR} and result.shadows[0].nodes == ("n1",)
    assert admitted(result) == {"beside": ["n1"]}
    assert texts(result)["no-end"] == (
        "needs CPU only, 4 CPUs on each node; what is free is kept for the first in line, which starts in about 60 min"
    )
    places = {hold.run_id: (hold.position, hold.eta) for hold in result.holds}
    assert places["large"] == (1, NOW + HOUR)


def test_who_is_gone_before_the_head_starts_may_use_its_processors():
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0)])
    shorter = cpu("shorter", 6.0, max_runtime_seconds=HOUR / 2)
    assert admitted(decide(snapshot, LARGE, shorter)) == {"shorter": ["n1"]}


def test_it_starts_when_its_time_has_come_and_keeps_nothing_then():
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0)])
    small = cpu("small", 4.0)
    after = carry_out(snapshot, decide(snapshot, LARGE, small), [LARGE, small]).apply(finished=["there"])
    result = decide(after, LARGE, small, now=NOW + HOUR)
    assert admitted(result) == {"large": ["n1"]} and starts(result) == {
        "small": HOUR + Policy().default_runtime_seconds
    }


def test_its_place_and_its_time_stay_from_cycle_to_cycle_and_through_the_ledger():
    nodes = [machine("n1", 10), machine("n2", 10)]
    snapshot = cluster(nodes, [busy("one", "n1", cpus=4.0), busy("two", "n2", cpus=4.0)])
    first = decide(snapshot, LARGE)
    kept = [Shadow.from_json(shadow.to_json()) for shadow in first.shadows]
    assert tuple(kept) == first.shadows
    # One more comes to the other node meanwhile, which would make that the busier one.
    after = cluster(nodes, [*snapshot.gangs(), busy("three", "n2", cpus=1.0)], shadows=kept)
    assert decide(after, LARGE, now=NOW + 10).shadows == first.shadows


def test_members_that_fit_on_one_node_together_are_kept_room_for_all_of_them():
    snapshot = cluster([machine("n1", 12)], [busy("there", "n1", cpus=6.0)])
    head = cpu("head", 5.0, nodes=2, waited=900.0)
    result = decide(snapshot, head, cpu("two", 2.0), cpu("three", 3.0))
    assert [shadow.nodes for shadow in result.shadows] == [("n1", "n1")]
    assert admitted(result) == {"two": ["n1"]}  # 12 less ten leaves two


def test_a_place_on_a_node_that_was_closed_meanwhile_is_looked_for_again():
    nodes = [machine("n1", 10), machine("n2", 10)]
    held = [busy("one", "n1", cpus=4.0), busy("two", "n2", cpus=4.0, left=2 * HOUR)]
    first = decide(cluster(nodes, held), LARGE)
    assert starts(first) == {"large": HOUR}
    closed = cluster([replace(nodes[0], schedulable=False), nodes[1]], held, shadows=first.shadows)
    result = decide(closed, LARGE)
    assert starts(result) == {"large": 2 * HOUR} and result.shadows[0].nodes == ("n2",)


def test_one_that_no_node_could_ever_hold_stands_in_nobodys_way():
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0)])
    result = decide(snapshot, cpu("never", 64.0, waited=9000.0), LARGE, cpu("small", 4.0))
    assert starts(result) == {"large": HOUR} and admitted(result) == {}


def test_who_asks_for_nothing_beside_is_kept_nothing():
    result = decide(cluster([machine("n1", 10, schedulable=False)]), waiting("plain", "1x0"))
    assert result.shadows == ()


def test_a_gang_with_cards_takes_the_processors_that_are_kept_for_the_head_and_never_gives_them_back():
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0)])
    endless = waiting("service", "1", cpus=4.0, preemptible=False)
    assert admitted(decide(snapshot, LARGE, endless)) == {}
    passer = waiting("passer", "1", cpus=4.0, checkpoint_seconds=10.0, grace_seconds=30.0)
    first = decide(snapshot, LARGE, passer)
    assert first.conditional == {"passer": NOW + HOUR}
    after = carry_out(snapshot, first, [LARGE, passer])
    assert decide(after, LARGE, now=NOW + HOUR - 41).recalls == ()
    told = decide(after, LARGE, now=NOW + HOUR - 40)
    assert [(recall.run_id, recall.for_run) for recall in told.recalls] == [("passer", "large")]


@pytest.mark.parametrize(("priority", "goes"), [(0, False), (1, True)])
def test_a_small_one_goes_first_by_base_priority_and_not_because_its_team_owns_more(priority, goes):
    """The head's team borrows; but who asks for no card reclaims nothing."""
    teams = [team("a", 0), team("b", 1000)]
    snapshot = cluster(TEN, [busy("there", "n1", cpus=4.0), running("cards", "n1/0", preemptible=True)], teams)
    after = carry_out(snapshot, decide(snapshot, LARGE), [LARGE])
    result = decide(after, LARGE, cpu("small", 4.0, team="b", priority=priority))
    assert admitted(result) == ({"small": ["n1"]} if goes else {})


def test_the_line_without_cards_is_not_that_for_cards():
    held = [busy("there", "n1", cpus=4.0), running("cards", "n1/0-1", preemptible=False)]
    result = decide(cluster(TEN, held), LARGE, waiting("card", "1", preemptible=False, waited=9000.0))
    assert {(shadow.resource_pool, shadow.run_id) for shadow in result.shadows} == {
        ("every GPU", "card"), ("no GPU", "large"),
    }  # fmt: skip
    assert {hold.run_id: hold.position for hold in result.holds} == {"card": 1, "large": 1}


def test_the_head_waits_for_processors_that_the_head_of_another_line_needs_only_later():
    """Both need what is on one node: the first what is free in 15 minutes, the second what is free an hour later."""
    held = [busy("soon", "n1", cpus=4.0, left=900.0), busy("late", "n1", cpus=4.0, left=4500.0)]
    snapshot = cluster([machine("n1", 8)], held)
    head, card = cpu("head", 4.0, waited=900.0), waiting("card", "1", cpus=4.0, preemptible=False)
    for seconds in (0.0, 10.0, 20.0):
        result = decide(snapshot, head, card, now=NOW + seconds)
        assert starts(result) == {"head": 900.0, "card": 4500.0}
        snapshot = snapshot.apply(shadows=result.shadows)
    result = decide(snapshot.apply(finished=["soon"]), head, card, now=NOW + 900.0)
    assert admitted(result) == {"head": ["n1"]} and starts(result) == {"card": 4500.0}


def test_nobody_takes_what_a_passer_leaves_to_the_head_by_evicting_it_a_moment_before():
    """The passer is gone by then in any case, so that evicting it for another leaves that other no more."""
    held = [busy("there", "n1", cpus=3.0), busy("stays", "n1", cpus=3.0, left=2 * HOUR)]
    head, card = cpu("head", 5.0, waited=900.0), waiting("card", "1", cpus=1.0, preemptible=False)
    passer = waiting("passer", "1", cpus=2.0, checkpoint_seconds=10.0, grace_seconds=30.0, waited=800.0)
    snapshot = cluster([machine("n1", 8)], held)
    first = decide(snapshot, head, passer)
    assert first.conditional == {"passer": NOW + HOUR}
    snapshot = carry_out(snapshot, first, [head, passer])
    second = decide(snapshot, head, card, now=NOW + 10.0)
    assert starts(second) == {"head": HOUR, "card": 2 * HOUR}
    last = decide(snapshot.apply(shadows=second.shadows), head, card, now=NOW + HOUR - 40.0)
    assert admitted(last) == {} and starts(last) == {"head": HOUR, "card": 2 * HOUR}
    assert [(recall.run_id, recall.for_run) for recall in last.recalls] == [("passer", "head")]
