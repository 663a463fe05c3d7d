"""One choice per gang, on one scale of cost: it is moved, shrunk or evicted, whichever loses the least."""

from dataclasses import replace

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.cost import eviction_cost, move_cost, resize_cost
from tests.workers.scheduling.world import (
    NOW,
    POLICY,
    admitted,
    cluster,
    decide,
    evicted,
    node,
    running,
    team,
    waiting,
    why,
)

MOVES = Policy(consolidation=True)
SIZES = Policy(resizing=True)
TWO = [node("n1", 4), node("n2", 4)]
HOUR = 3600.0


def moved(result):
    """Run id of the gang that room is made for → who goes where."""
    return {a.run_id: {m.run_id: list(m.placement.devices) for m in a.moves} for a in result.admits if a.moves}


def resized(result):
    return {a.run_id: {r.run_id: list(r.placement.devices) for r in a.resizes} for a in result.admits if a.resizes}


def kept_members(result):
    """The first node and the number of members that a shrunk gang goes on with."""
    return {
        a.run_id: {r.run_id: (r.placement.members[0].node, len(r.placement.members)) for r in a.resizes}
        for a in result.admits
        if a.resizes
    }


# ---- consolidation ----------------------------------------------------------------------------------------------


def test_a_gang_is_moved_into_free_room_so_that_another_of_the_same_priority_fits():
    held = [running("left", "n1/0-1", ran=9000), running("right", "n2/0-1")]
    result = decide(cluster(TWO, held), waiting("four", "4"), policy=MOVES)
    assert admitted(result) == {"four": ["n2"]} and evicted(result) == {}
    assert moved(result) == {"four": {"right": ["n1/2", "n1/3"]}}
    assert result.admits[0].moves[0].cost == move_cost(held[1], MOVES, NOW) and result.admits[0].optimal


def test_nobody_is_moved_while_the_policy_is_off():
    held = [running("left", "n1/0-1"), running("right", "n2/0-1")]
    assert why(decide(cluster(TWO, held), waiting("four", "4"))) == {"four": "fragmented"}


@pytest.mark.parametrize(
    ("more", "moves"),
    [
        pytest.param({}, True, id="a gang that may be evicted"),
        pytest.param({"priority": 1}, False, id="not one of higher base priority"),
        pytest.param({"preemptible": False}, False, id="not one that may not be evicted"),
        pytest.param({"moved_at": NOW - 5 * HOUR}, False, id="not one that was moved within six hours"),
        pytest.param({"moved_at": NOW - 7 * HOUR}, True, id="one that was moved before that"),
        pytest.param({"ran": 10, "first_commit_at": None}, False, id="not one within its minimum run"),
        pytest.param({"evicting": True}, False, id="not one that is leaving"),
    ],
)
def test_who_may_be_moved(more, moves):
    held = [running("left", "n1/0-1", preemptible=False), running("right", "n2/0-1", **more)]
    result = decide(cluster(TWO, held), waiting("four", "4"), policy=MOVES)
    assert (moved(result) == {"four": {"right": ["n1/2", "n1/3"]}}) == moves


def test_nobody_is_moved_to_where_no_room_is():
    held = [running("left", "n1/0-2"), running("right", "n2/0-1")]
    assert decide(cluster(TWO, held), waiting("four", "4"), policy=MOVES).admits == ()


def test_several_move_at_once_and_find_room_beside_each_other():
    nodes = [node("n1", 4), node("n2", 4), node("n3", 4)]
    held = [running("a", "n1/0-1"), running("b", "n2/0-1"), running("c", "n3/0", "n3/2")]
    result = decide(cluster(nodes, held), waiting("eight", "4"), policy=MOVES)
    places = [uuid for to in moved(result).values() for uuids in to.values() for uuid in uuids]
    assert len(places) == len(set(places)) == 2
    taken = {uuid for admit in result.admits for uuid in admit.placement.devices}
    assert not taken & set(places)


def test_moving_is_preferred_to_evicting_the_same_gang_and_evicting_where_moving_is_dearer():
    held = [running("left", "n1/0-1", preemptible=False), running("right", "n2/0-1", evictions=1)]
    result = decide(cluster(TWO, held), waiting("four", "4", priority=9), policy=MOVES)
    assert moved(result) and not evicted(result)
    held = [
        running("left", "n1/0-1"),
        running("stale", "n2/0-1", last_commit_at=NOW - 3000),
        running("cheap", "n3/0-3"),
    ]
    result = decide(cluster([*TWO, node("n3", 4)], held), waiting("four", "4", priority=9), policy=MOVES)
    assert moved(result) == {"four": {"left": ["n2/2", "n2/3"]}} and not evicted(result)
    held[0] = running("left", "n1/0-1", last_commit_at=NOW - 3000)
    result = decide(cluster([*TWO, node("n3", 4)], held), waiting("four", "4", priority=9), policy=MOVES)
    assert evicted(result) == {"four": ["cheap"]} and not moved(result)


def test_a_moved_gang_keeps_its_shape_and_its_domain():
    nodes = [node(f"{d}{i}", 2, domain=d) for d in "xyz" for i in range(2)]
    held = [
        running("pair", "x0/0", "x1/0", topology=Topology.DOMAIN),
        running("solid", "y0/0", "y1/0", preemptible=False),
        running("z", "z0/0-1", "z1/0-1", preemptible=False),
    ]
    result = decide(cluster(nodes, held), waiting("wide", "2x2", topology=Topology.DOMAIN), policy=MOVES)
    assert moved(result) == {"wide": {"pair": ["y0/1", "y1/1"]}}


def test_a_moved_gang_does_not_take_what_is_kept_for_the_head_of_line():
    held = [
        running("long", "n1/0-1", ran=HOUR, max_runtime_seconds=2 * HOUR, preemptible=False),
        running("right", "n2/0-1", priority=5, max_runtime_seconds=9 * HOUR),
    ]
    urgent = waiting("urgent", "4", priority=9)
    assert moved(decide(cluster(TWO, held), urgent, policy=MOVES)) == {"urgent": {"right": ["n1/2", "n1/3"]}}
    head = waiting("head", "4")
    (shadow,) = decide(cluster(TWO, held), head, policy=MOVES).shadows
    assert shadow.devices[0].startswith("n1/")
    result = decide(cluster(TWO, held, shadows=[shadow]), head, urgent, policy=MOVES)
    assert evicted(result) == {"urgent": ["right"]} and moved(result) == {}


# ---- elastic gangs ----------------------------------------------------------------------------------------------


def elastic(*devices, least=1, most=4, **more):
    gang = running("elastic", *devices, **more)
    return replace(gang, request=replace(gang.request, nodes=most, min_nodes=least))


def test_an_elastic_gang_is_shrunk_again_and_again_for_one_after_the_other():
    """As it is moved: once in the policy's interval. Then it gives way altogether, or others do."""
    nodes = [node(f"n{i}", 2) for i in range(1, 5)]
    lately = NOW - SIZES.move_interval_seconds
    for moved_at, shrinks in ((lately, True), (lately + 1, False)):
        held = [elastic("n1/0-1", "n2/0-1", "n3/0-1", "n4/0-1", moved_at=moved_at)]
        result = decide(cluster(nodes, held), waiting("new", "2", priority=9), policy=SIZES)
        assert bool(resized(result)) is shrinks and bool(evicted(result)) is not shrinks


def test_an_elastic_gang_is_shrunk_before_anybody_is_evicted():
    nodes = [node(f"n{i}", 2) for i in range(4)]
    held = [elastic("n0/0-1", "n1/0-1", "n2/0-1"), running("solid", "n3/0-1")]
    result = decide(cluster(nodes, held), waiting("new", "2", priority=9), policy=SIZES)
    assert evicted(result) == {"new": ["solid"]}, "two devices of another cost less than restarting four"
    held[1] = running("solid", "n3/0-1", last_commit_at=NOW - 500)
    result = decide(cluster(nodes, held), waiting("new", "2", priority=9), policy=SIZES)
    assert evicted(result) == {} and kept_members(result) == {"new": {"elastic": ("n0", 2)}}
    assert result.admits[0].resizes[0].cost == resize_cost(held[0], 4, SIZES, NOW) < eviction_cost(held[0], SIZES, NOW)


def test_an_elastic_gang_keeps_its_minimum_and_its_first_member():
    nodes = [node(f"n{i}", 2) for i in range(3)]
    held = [elastic("n0/0-1", "n1/0-1", "n2/0-1", least=2)]
    result = decide(cluster(nodes, held), waiting("new", "2", priority=9), policy=SIZES)
    assert kept_members(result) == {"new": {"elastic": ("n0", 2)}}
    result = decide(cluster(nodes, held), waiting("new", "2x2", priority=9), policy=SIZES)
    assert resized(result) == {} and evicted(result) == {"new": ["elastic"]}


def test_the_members_given_up_are_those_where_the_room_is_needed():
    nodes = [node("n0", 2), node("n1", 2), node("n2", 4)]
    held = [elastic("n0/0-1", "n2/0-1", "n1/0-1", least=2)]
    result = decide(cluster(nodes, held), waiting("new", "4", priority=9), policy=SIZES)
    assert resized(result) == {"new": {"elastic": ["n0/0", "n0/1", "n1/0", "n1/1"]}}
    assert admitted(result) == {"new": ["n2"]}


def test_shrinking_needs_the_same_rights_as_evicting():
    nodes = [node(f"n{i}", 2) for i in range(3)]
    held = [elastic("n0/0-1", "n1/0-1", "n2/0-1")]
    assert decide(cluster(nodes, held), waiting("new", "2"), policy=SIZES).admits == ()
    teams = [team("a", 4), team("b", 2)]
    result = decide(cluster(nodes, held, teams), waiting("new", "2", team="b"), policy=SIZES)
    assert list(resized(result)) == ["new"]


def test_everybody_starts_at_its_minimum_before_the_surplus_is_dealt():
    nodes = [node(f"n{i}", 2) for i in range(5)]
    queue = [waiting("one", "4x2", min_nodes=1, waited=90), waiting("two", "4x2", min_nodes=1, waited=80)]
    result = decide(cluster(nodes), *queue, waiting("rigid", "2", waited=1))
    assert {name: len(on) for name, on in admitted(result).items()} == {"one": 2, "two": 2, "rigid": 1}


def test_the_surplus_is_dealt_by_weighted_share():
    nodes = [node(f"n{i}", 1) for i in range(10)]
    teams = [team("a", 0, weight=3.0), team("b", 0, weight=1.0)]
    queue = [waiting("big", "9x1", min_nodes=1, team="a"), waiting("small", "9x1", min_nodes=1, team="b")]
    placed = admitted(decide(cluster(nodes, [], teams), *queue))
    assert {name: len(on) for name, on in placed.items()} == {"big": 8, "small": 2} or (
        len(placed["big"]) == 7 and len(placed["small"]) == 3
    )


def test_the_surplus_stays_within_the_teams_limit():
    nodes = [node(f"n{i}", 2) for i in range(5)]
    snapshot = cluster(nodes, [], [team("a", 4, borrow=2)])
    assert len(admitted(decide(snapshot, waiting("e", "5x2", min_nodes=1)))["e"]) == 3


def test_a_running_gang_grows_only_where_that_pays_ten_times_and_nobody_waits():
    nodes = [node(f"n{i}", 2) for i in range(4)]
    held = [elastic("n0/0-1", "n1/0-1", most=4)]
    assert decide(cluster(nodes, held)).growths == ()
    (growth,) = decide(cluster(nodes, held), policy=SIZES).growths
    assert len(growth.placement.members) == 4 and growth.placement.devices[:2] == ("n0/0", "n0/1")
    # 4 devices × idle seconds against 10 × 4 × (10 + 30): it pays from 400 s on.
    assert decide(cluster(nodes, held), policy=Policy(resizing=True, idle_horizon_seconds=399)).growths == ()
    assert decide(cluster(nodes, held), policy=Policy(resizing=True, idle_horizon_seconds=401)).growths != ()
    # Nor does it pay for a gang that will soon be over, by its contract or by what runs like it have lasted.
    for left, pays in ((399, False), (401, True)):
        for known in ({"max_runtime_seconds": 3600.0 + left}, {"expected_seconds": 3600.0 + left}):
            ends = [elastic("n0/0-1", "n1/0-1", most=4, ran=3600.0, **known)]
            assert bool(decide(cluster(nodes, ends), policy=SIZES).growths) == pays, (left, known)
    blocked = decide(cluster(nodes, held), waiting("x", "4x2"), waiting("y", "4x2"), policy=SIZES)
    assert blocked.growths == ()
    lately = [elastic("n0/0-1", "n1/0-1", moved_at=NOW - 60)]
    assert decide(cluster(nodes, lately), policy=SIZES).growths == ()


def test_growth_takes_nothing_that_is_kept_for_the_head_of_line():
    nodes = [node(f"n{i}", 2) for i in range(4)]
    held = [
        elastic("n0/0-1", most=4, max_runtime_seconds=9 * HOUR),
        running("r", "n1/0-1", max_runtime_seconds=2 * HOUR, preemptible=False),
    ]
    result = decide(cluster(nodes, held), waiting("head", "3x2"), policy=SIZES)
    assert result.admits == () and {uuid[:2] for uuid in result.shadows[0].devices} == {"n1", "n2", "n3"}
    assert result.growths == ()
    assert decide(cluster(nodes, held), policy=SIZES).growths != ()


# ---- rate -------------------------------------------------------------------------------------------------------


def test_t20_a_team_suffers_no_more_evictions_than_its_rate():
    held = [running(f"r{i}", f"n1/{i}") for i in range(4)]
    queue = [waiting(f"w{i}", "1", priority=9) for i in range(4)]
    policy = Policy(evictions_per_team=3)
    snapshot = cluster([node("n1", 4)], held, evicted_lately={"a": 1})
    assert len(evicted(decide(snapshot, *queue, policy=policy))) == 2
    assert evicted(decide(snapshot, waiting("wide", "4", priority=9), policy=policy)) == {}
    assert len(evicted(decide(snapshot, *queue, policy=POLICY))) == 4


def test_the_holder_of_a_shadow_may_still_evict_those_that_passed_it():
    passer = running("passer", "n1/0-3", conditional_until=NOW, priority=50)
    first = decide(cluster([node("n1", 4)], [passer]), waiting("head", "4"))
    snapshot = cluster([node("n1", 4)], [passer], shadows=first.shadows, evicted_lately={"a": 5})
    assert evicted(decide(snapshot, waiting("head", "4"), policy=Policy(evictions_per_team=0))) == {"head": ["passer"]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"level_device_seconds": (5.0, 5.0)}, "level_device_seconds must rise"),
        ({"level_device_seconds": (0.0,)}, "level_device_seconds must rise"),
        ({"evictions_per_team": -1}, "evictions_per_team must not be negative"),
        ({"growth_worth": 0}, "growth_worth: 0: write a finite number above 0"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(values, said):
    with pytest.raises(InvalidRequest, match=said):
        Policy(**values)


@pytest.mark.parametrize(
    ("topology", "at", "expected"),
    [
        (Topology.RACK, "lost0", []),
        (Topology.RACK, "ra0", ["ra1"]),
        (Topology.SPREAD, "ra0", ["rb0"]),
    ],
    ids=["a gang in no known rack stays", "one in a rack grows in it", "a spread one only into other known racks"],
)
def test_a_gang_bound_to_racks_never_grows_onto_a_node_whose_rack_nobody_knows(topology, at, expected):
    racks = [node("lost0", 2), node("lost1", 2), node("ra0", 2, rack="ra"), node("ra1", 2, rack="ra")]
    nodes = [*racks, node("rb0", 2, rack="rb")]
    small = running("e", f"{at}/0-1", topology=topology)
    grown = replace(small, request=replace(small.request, nodes=2, min_nodes=1))
    growths = decide(cluster(nodes, [grown]), policy=SIZES).growths
    assert [member.node for growth in growths for member in growth.placement.members if member.node != at] == expected
