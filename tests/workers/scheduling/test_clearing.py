"""Gangs that ask for no GPU and have others leave by priority: who, at what price, and what is kept for them then."""

from dataclasses import replace
from itertools import combinations
from math import floor, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind
from dsec_workers.scheduling import Policy, RunningGang, Shadow
from dsec_workers.scheduling.cost import UNITS, eviction_cost
from tests.workers.scheduling.test_without_cards import TEN, busy, cpu, machine, starts
from tests.workers.scheduling.world import (
    GIB,
    NOW,
    POLICY,
    admitted,
    carry_out,
    cluster,
    decide,
    running,
    team,
    texts,
    waiting,
    why,
)

HOUR = 3600.0
URGENT = cpu("urgent", 8.0, priority=50)


def low(run_id, *nodes, cpus, ran=HOUR, **more):
    """A gang without cards that has run long enough to be asked."""
    return replace(busy(run_id, *nodes, cpus=cpus, left=None, **more), started_at=NOW - ran)


def told(result):
    """Preemptor → whom it has leave, sorted."""
    found = {}
    for recall in result.recalls:
        found.setdefault(recall.for_run, []).append(recall.run_id)
    return {run_id: sorted(victims) for run_id, victims in found.items()}


def test_an_urgent_gang_without_cards_waited_for_processors_behind_any_number_of_unimportant_ones():
    """It evicted nobody, whatever its priority."""
    snapshot = cluster(TEN, [low("one", "n1", cpus=4.0), low("two", "n1", cpus=4.0, ran=2 * HOUR)])
    result = decide(snapshot, URGENT)
    assert told(result) == {"urgent": ["one", "two"]} and result.admits == ()
    assert starts(result) == {"urgent": 30.0} and result.shadows[0].nodes == ("n1",)
    assert [recall.start for recall in result.recalls] == [NOW + 30.0] * 2
    smaller = decide(snapshot, cpu("urgent", 6.0, priority=50))
    assert told(smaller) == {"urgent": ["one"]}, "the newest of those that will do"


def test_equal_priority_evicts_nobody_nor_does_a_gang_whose_nodes_count_no_processors():
    snapshot = cluster(TEN, [low("there", "n1", cpus=8.0, priority=50)])
    assert told(decide(snapshot, URGENT)) == {}
    assert told(decide(cluster(TEN, [low("there", "n1", cpus=8.0)]), waiting("plain", "1x0", priority=50))) == {}


def test_gangs_without_devices_leave_first_and_those_with_cards_where_nothing_else_makes_room():
    held = [low("cpu", "n1", cpus=4.0), running("cards", "n1/0-1", cpus=4.0)]
    assert told(decide(cluster(TEN, held), cpu("urgent", 6.0, priority=50))) == {"urgent": ["cpu"]}
    assert told(decide(cluster(TEN, held), URGENT)) == {"urgent": ["cards", "cpu"]}
    nodes = [machine("n1", 10), machine("n2", 10)]
    held = [running("dear", "n1/0-1", cpus=8.0), running("cheap", "n2/0", cpus=8.0)]
    result = decide(cluster(nodes, held), URGENT)
    assert told(result) == {"urgent": ["cheap"]} and result.shadows[0].nodes == ("n2",)
    assert result.recalls[0].cost == eviction_cost(held[1], POLICY, NOW)


def test_who_holds_the_memory_leaves_and_who_would_not_help_stays():
    nodes = [replace(machine("n1", 10), memory_bytes=64 * GIB)]
    held = [low("cpu", "n1", cpus=4.0), low("memory", "n1", cpus=0.5, memory_bytes=40 * GIB)]
    urgent = cpu("urgent", 2.0, memory_bytes=30 * GIB, priority=50)
    assert told(decide(cluster(nodes, held), urgent)) == {"urgent": ["memory"]}


def test_all_members_find_room_or_nobody_is_told():
    nodes = [machine("n1", 10), machine("n2", 10)]
    held = [low("a", "n1", cpus=8.0), low("b", "n2", cpus=8.0, preemptible=False)]
    assert told(decide(cluster(nodes, held), cpu("urgent", 6.0, nodes=2, priority=50))) == {}
    assert told(decide(cluster(nodes, held), cpu("urgent", 5.0, nodes=2, priority=50))) == {"urgent": ["a"]}
    held[1] = low("b", "n2", cpus=8.0)
    assert told(decide(cluster(nodes, held), cpu("urgent", 6.0, nodes=2, priority=50))) == {"urgent": ["a", "b"]}


def test_one_that_leaves_two_nodes_is_cheaper_than_one_on_each():
    nodes = [machine("n1", 10), machine("n2", 10)]
    held = [low("wide", "n1", "n2", cpus=5.0), low("a", "n1", cpus=5.0), low("b", "n2", cpus=5.0)]
    assert told(decide(cluster(nodes, held), cpu("urgent", 5.0, nodes=2, priority=50))) == {"urgent": ["wide"]}


@pytest.mark.parametrize(
    "spared",
    [
        {"ran": 60.0},
        {"preemptible": False},
        {"kind": Kind.INFERENCE},
        {"priority": 50},
    ],
    ids=["in its minimum run", "not preemptible", "inference", "as important"],
)
def test_nobody_is_told_who_may_not_be(spared):
    result = decide(cluster(TEN, [low("there", "n1", cpus=8.0, **spared)]), URGENT)
    assert told(result) == {} and why(result) == {"urgent": "waits-for-capacity"}


def test_a_team_suffers_no_more_evictions_than_its_rate():
    held = [low("one", "n1", cpus=4.0), low("two", "n1", cpus=4.0)]
    policy = Policy(evictions_per_team=1)
    assert told(decide(cluster(TEN, held), URGENT, policy=policy)) == {}
    assert told(decide(cluster(TEN, held), cpu("urgent", 6.0, priority=50), policy=policy)) == {"urgent": ["one"]}
    suffered = cluster(TEN, held, evicted_lately={"a": 1})
    assert told(decide(suffered, cpu("urgent", 6.0, priority=50), policy=policy)) == {}


def test_nobody_evicts_whom_it_was_evicted_for():
    snapshot = cluster(TEN, [low("there", "n1", cpus=8.0)])
    assert told(decide(snapshot, replace(URGENT, evicted_for=("there",)))) == {}


def test_a_team_that_borrows_devices_may_still_ask_for_processors():
    teams = [team("a", 0), team("b", 8)]
    held = [running("borrowed", "n1/0"), low("there", "n1", cpus=8.0, team="b")]
    assert told(decide(cluster(TEN, held, teams), URGENT)) == {"urgent": ["there"]}


def test_what_is_left_to_it_is_kept_while_they_leave_and_after_until_it_starts():
    snapshot = cluster(TEN, [low("there", "n1", cpus=8.0)])
    later = cpu("later", 4.0, waited=9000.0)
    first = decide(snapshot, URGENT, later)
    snapshot = carry_out(snapshot, first, [])
    second = decide(snapshot, URGENT, later, now=NOW + 5.0)
    assert told(second) == {} and admitted(second) == {}, "one preemption in flight for each"
    assert why(second)["urgent"] == "waits-for-victims"
    assert texts(second)["urgent"] == "needs CPU only, 8 CPUs on each node; 1 gang leaving to make room"
    left = snapshot.apply(finished=["there"], shadows=second.shadows)
    card = waiting("card", "1", cpus=4.0, waited=9000.0, preemptible=False)
    third = decide(left, URGENT, later, card, now=NOW + 10.0)
    assert admitted(third) == {"urgent": ["n1"]}


def test_who_goes_before_it_by_right_may_take_what_is_kept_and_it_asks_again():
    snapshot = cluster(TEN, [low("there", "n1", cpus=8.0)])
    first = decide(snapshot, URGENT)
    left = carry_out(snapshot, first, []).apply(finished=["there"])
    higher = cpu("higher", 8.0, priority=90)
    assert admitted(decide(left, URGENT, higher, now=NOW + 10.0)) == {"higher": ["n1"]}


def test_the_place_of_a_less_important_head_of_line_is_given_to_it_and_the_head_starts_later():
    snapshot = cluster(TEN, [busy("ends", "n1", cpus=4.0), low("there", "n1", cpus=4.0, preemptible=False)])
    head = cpu("head", 5.0, waited=900.0)
    snapshot = carry_out(snapshot, decide(snapshot, head), [])
    assert [shadow.start for shadow in snapshot.shadows] == [NOW + HOUR]
    snapshot = snapshot.apply(updated=[replace(busy("ends", "n1", cpus=4.0), started_at=NOW - HOUR)])
    result = decide(snapshot, head, cpu("urgent", 5.0, priority=50, max_runtime_seconds=600.0))
    assert told(result) == {"urgent": ["ends"]}
    assert starts(result)["urgent"] == 30.0 and starts(result)["head"] > 30.0


def test_a_second_takes_what_the_victims_of_the_first_leave_over_and_tells_nobody():
    snapshot = cluster(TEN, [low("there", "n1", cpus=10.0), low("other", "n1", cpus=0.0)])
    second = cpu("second", 2.0, priority=40)
    result = decide(snapshot, URGENT, second)
    assert told(result) == {"urgent": ["there"]}
    left = carry_out(snapshot, result, []).apply(finished=["there"])
    assert admitted(decide(left, URGENT, second, now=NOW + 10.0)) == {"urgent": ["n1"], "second": ["n1"]}


def test_the_shadow_of_it_goes_through_the_ledger():
    (shadow,) = decide(cluster(TEN, [low("there", "n1", cpus=8.0)]), URGENT).shadows
    assert Shadow.from_json(shadow.to_json()) == shadow


# ---- against every set there is ---------------------------------------------------------------------------------


@st.composite
def scenes(draw):
    nodes = [
        replace(
            machine(f"n{index}", draw(st.sampled_from([4, 6]))),
            memory_bytes=draw(st.sampled_from([None, 8 * GIB, 16 * GIB])),
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    held, cards = [], {node.name: 0 for node in nodes}
    used = {node.name: [0.0, 0] for node in nodes}
    for index in range(draw(st.integers(4, 10))):
        on = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=2, unique_by=lambda node: node.name))
        cpus = draw(st.sampled_from([1.0, 2.0, 3.0]))
        memory = draw(st.sampled_from([None, 2 * GIB, 4 * GIB]))
        if any(
            used[n.name][0] + cpus > n.cpus or used[n.name][1] + (memory or 0) > (n.memory_bytes or inf) for n in on
        ):
            continue
        devices = int(draw(st.booleans()) and all(cards[node.name] < 2 for node in on))
        members = []
        for node in on:
            used[node.name] = [used[node.name][0] + cpus, used[node.name][1] + (memory or 0)]
            uuids = tuple(f"{node.name}/{cards[node.name]}" for _ in range(devices))
            cards[node.name] += devices
            members.append(MemberPlacement(node=node.name, devices=uuids))
        held.append(
            RunningGang(
                run_id=f"r{index}",
                team="a",
                request=GangRequest(
                    nodes=len(on), devices_per_node=devices, cpus=cpus, memory_bytes=memory,
                    priority=draw(st.integers(0, 2)), preemptible=draw(st.integers(0, 7)) > 0,
                ),
                placement=Placement(members=tuple(members)),
                submitted_at=NOW - 5000.0,
                started_at=NOW - draw(st.sampled_from([100.0, 1000.0, 1000.0, 2000.0, 2000.0, 3000.0])),
                last_commit_at=NOW - draw(st.sampled_from([0.0, 50.0])),
            )
        )  # fmt: skip
    urgent = waiting(
        "urgent", f"{draw(st.integers(1, 3))}x0", cpus=draw(st.sampled_from([2.0, 3.0, 4.0, 5.0])),
        memory_bytes=draw(st.sampled_from([None, 3 * GIB, 6 * GIB])), priority=draw(st.sampled_from([1, 3, 3])),
    )  # fmt: skip
    return nodes, held, urgent


def fits(nodes, held, request):
    """Whether all members of `request` find room beside `held`."""
    total = 0
    for node in nodes:
        here = [gang for gang in held for member in gang.placement.members if member.node == node.name]
        times = request.nodes
        for size, wanted, taken in (
            (node.cpus, request.cpus, sum(gang.request.cpus for gang in here)),
            (node.memory_bytes, request.memory_bytes, sum(gang.request.memory_bytes or 0 for gang in here)),
        ):
            if size is not None and wanted:
                times = min(times, floor((size - taken) / wanted))
        total += max(0, times)
    return total >= request.nodes


def price(victims):
    """What makes one choice better than another."""
    return (
        sum(round(eviction_cost(gang, POLICY, NOW) * UNITS) for gang in victims),
        len(victims),
        sorted(-gang.started_at for gang in victims),
        sorted(gang.run_id for gang in victims),
    )


def cheapest(nodes, held, request):
    """By looking at every set."""
    may = [
        gang
        for gang in held
        if gang.request.priority < request.priority
        and gang.request.evictable
        and NOW - gang.started_at >= POLICY.min_run_seconds
    ]
    sets = (some for count in range(1, len(may) + 1) for some in combinations(may, count))
    return min(
        (some for some in sets if fits(nodes, [gang for gang in held if gang not in some], request)),
        key=price,
        default=None,
    )


@settings(max_examples=300, deadline=None)
@given(scene=scenes())
def test_it_is_the_cheapest_set_there_is(scene):
    nodes, held, urgent = scene
    result = decide(cluster(nodes, held), urgent)
    if fits(nodes, held, urgent.request):
        assert list(admitted(result)) == ["urgent"] and result.recalls == ()
        return
    best = cheapest(nodes, held, urgent.request)
    assert told(result) == ({} if best is None else {"urgent": sorted(gang.run_id for gang in best)})
    assert admitted(result) == {}
    if best is not None:
        (shadow,) = result.shadows
        rest = [gang for gang in held if gang not in best]
        assert fits([node for node in nodes if node.name in shadow.nodes], rest, urgent.request)
        left = carry_out(cluster(nodes, held), result, []).apply(finished=[gang.run_id for gang in best])
        assert list(admitted(decide(left, urgent, now=NOW + 10.0))) == ["urgent"]


@settings(max_examples=200, deadline=None)
@given(scene=scenes())
def test_where_there_are_too_many_to_prove_it_nobody_leaves_who_need_not(scene):
    nodes, held, urgent = scene
    result = decide(cluster(nodes, held), urgent, policy=Policy(exact_candidates=0))
    best = None if fits(nodes, held, urgent.request) else cheapest(nodes, held, urgent.request)
    leaving = {recall.run_id for recall in result.recalls}
    assert bool(leaving) == (best is not None)
    for kept in leaving:
        rest = [gang for gang in held if gang.run_id not in leaving or gang.run_id == kept]
        assert not fits(nodes, rest, urgent.request)
