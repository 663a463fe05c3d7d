"""Processors and memory of nodes, for those who wait for them: who makes room, who is kept a place, who may pass."""

from dataclasses import replace

import pytest

from dsec_workers.scheduling import Policy
from tests.workers.scheduling.world import (
    GIB,
    NOW,
    admitted,
    carry_out,
    cluster,
    decide,
    evicted,
    node,
    running,
    texts,
    waiting,
    why,
)


def machine(name, gpus, cpus, memory_gib=None, **more):
    memory = None if memory_gib is None else memory_gib * GIB
    return replace(node(name, gpus, **more), cpus=float(cpus), memory_bytes=memory)


TEN = [machine("n1", 2, 10)]
HEAD = waiting("head", "1", cpus=8.0, waited=900, preemptible=False)
HOUR = 3600.0


def busy(run_id="a", *devices, **more):
    fixed = {"cpus": 8.0, "preemptible": False, "ran": 0.0, "max_runtime_seconds": HOUR}
    return running(run_id, *(devices or ("n1/0",)), **{**fixed, **more})


# ---- the head of line ---------------------------------------------------------------------------------------------


def test_a_card_idles_for_ever_behind_a_head_that_lacks_processors_and_is_to_start_now():
    result = decide(cluster(TEN, [busy()]), HEAD, waiting("small", "1", cpus=1.0, preemptible=False))
    assert admitted(result) == {"small": ["n1"]}
    assert [(shadow.run_id, shadow.start) for shadow in result.shadows] == [("head", NOW + HOUR)]
    assert {hold.run_id: hold.eta for hold in result.holds} == {"head": NOW + HOUR}


def test_the_head_that_lacks_memory_is_kept_a_place_when_the_memory_comes_back():
    held = [busy(cpus=None, memory_bytes=60 * GIB)]
    result = decide(cluster([machine("n1", 2, 10, 64)], held), waiting("head", "1", memory_bytes=32 * GIB))
    assert [shadow.start for shadow in result.shadows] == [NOW + HOUR]


@pytest.mark.parametrize(("wants", "passes"), [(2.0, True), (2.5, False)])
def test_whoever_takes_the_processors_that_the_head_waits_for_makes_it_wait_longer(wants, passes):
    """Three are free now; when the other has left, the head needs nine of eleven."""
    snapshot = cluster([machine("n1", 3, 11)], [busy()])
    head = waiting("head", "1", cpus=9.0, waited=900, preemptible=False)
    result = decide(snapshot, head, waiting("passer", "1", cpus=wants, preemptible=False))
    assert admitted(result) == ({"passer": ["n1"]} if passes else {})
    assert [shadow.start for shadow in result.shadows] == [NOW + HOUR]


def test_who_is_gone_before_the_head_starts_may_use_its_processors():
    short = waiting("short", "1", cpus=2.0, preemptible=False, max_runtime_seconds=HOUR / 2)
    result = decide(cluster([machine("n1", 3, 10)], [busy()]), replace(HEAD, request=replace(
        HEAD.request, cpus=9.0)), short)  # fmt: skip
    assert admitted(result) == {"short": ["n1"]}


def test_a_gang_without_cards_takes_the_processors_that_are_kept_for_the_head():
    snapshot = cluster([machine("n1", 3, 10)], [busy()])
    head = replace(HEAD, request=replace(HEAD.request, cpus=9.0))
    assert admitted(decide(snapshot, head, waiting("cpu", "1x0", cpus=2.0, preemptible=False))) == {}
    assert admitted(decide(snapshot, head, waiting("cpu", "1x0", cpus=1.0, preemptible=False))) == {"cpu": ["n1"]}


def test_a_gang_without_cards_that_waits_is_no_head_of_the_line_for_cards():
    held = [busy(), busy("b", "n1/1", cpus=2.0)]
    result = decide(
        cluster(TEN, held), waiting("cpu", "1x0", cpus=4.0, waited=9000), waiting("card", "1", preemptible=False)
    )
    assert [(shadow.resource_pool, shadow.run_id) for shadow in result.shadows] == [
        ("every GPU", "card"),
        ("no GPU", "cpu"),
    ]


def test_the_head_keeps_its_place_and_its_time_from_cycle_to_cycle():
    snapshot = cluster([machine("n1", 3, 10)], [busy()])
    first = decide(snapshot, HEAD, waiting("s1", "1", cpus=1.0, preemptible=False))
    after = carry_out(snapshot, first, [HEAD, waiting("s1", "1", cpus=1.0, preemptible=False)])
    second = decide(after, HEAD, waiting("s2", "1", cpus=1.5, preemptible=False), now=NOW + 10)
    assert admitted(second) == {}  # 1 + 1.5 + 8 would be more than ten
    assert second.shadows == first.shadows


def test_who_passes_on_condition_beside_the_head_is_told_in_time_to_give_its_processors_back():
    snapshot = cluster([machine("n1", 3, 10)], [busy()])
    passer = waiting("passer", "1", cpus=2.0, checkpoint_seconds=10.0, grace_seconds=30.0)
    head = replace(HEAD, request=replace(HEAD.request, cpus=9.0))
    first = decide(snapshot, head, passer)
    assert admitted(first) == {"passer": ["n1"]}
    assert first.conditional == {"passer": NOW + HOUR}
    after = carry_out(snapshot, first, [head, passer])
    assert decide(after, head, now=NOW + HOUR - 41).recalls == ()
    assert [recall.run_id for recall in decide(after, head, now=NOW + HOUR - 40).recalls] == ["passer"]


def test_who_passed_beside_the_head_without_taking_what_it_needs_is_not_called_back():
    held = [busy(), busy("other", "n1/1", cpus=1.0, preemptible=True, max_runtime_seconds=3 * HOUR,
                         conditional_until=NOW + 2 * HOUR)]  # fmt: skip
    snapshot = cluster([machine("n1", 3, 10)], held)
    first = decide(snapshot, HEAD)
    after = carry_out(snapshot, first, [HEAD])
    assert decide(after, HEAD, now=NOW + HOUR - 30).recalls == ()


def test_two_heads_of_different_cards_on_one_node_do_not_count_the_same_processors():
    nodes = [machine("n1", 1, 8), replace(node("n2", 2), cpus=8.0)]
    mixed = replace(nodes[1], devices=(nodes[1].devices[0], replace(nodes[1].devices[1], model="A100")))
    held = [busy("a", "n2/0", cpus=4.0), busy("b", "n2/1", cpus=4.0, max_runtime_seconds=2 * HOUR)]
    heads = [
        waiting("h", "1", gpu_model="H100", cpus=6.0, waited=900, preemptible=False),
        waiting("o", "1", gpu_model="A100", cpus=6.0, waited=800, preemptible=False),
    ]
    result = decide(cluster([mixed], held), *heads)
    assert {shadow.run_id: shadow.start for shadow in result.shadows} == {"h": NOW + 2 * HOUR}


# ---- who makes room -----------------------------------------------------------------------------------------------


def test_a_gang_of_higher_priority_waits_behind_whoever_holds_the_processors_it_lacks():
    held = [running("a", "n1/0", cpus=8.0)]
    result = decide(cluster(TEN, held), waiting("urgent", "1", cpus=8.0, priority=50))
    assert evicted(result) == {"urgent": ["a"]}
    assert result.admits[0].placement.devices == ("n1/0",), "what the victim leaves, so that it waits for it"


def test_of_two_holders_the_one_whose_processors_suffice_goes_and_not_the_cheaper():
    held = [
        running("cheap", "n1/0", cpus=1.0),
        running("dear", "n1/1", cpus=8.0, last_commit_at=NOW - 1000),
    ]
    snapshot = cluster([machine("n1", 3, 10)], held)
    assert evicted(decide(snapshot, waiting("urgent", "1", cpus=8.0, priority=50))) == {"urgent": ["dear"]}


def test_whoever_holds_the_memory_it_lacks_makes_room():
    held = [running("small", "n1/0", memory_bytes=8 * GIB), running("large", "n1/1", memory_bytes=40 * GIB)]
    snapshot = cluster([machine("n1", 3, 100, 64)], held)
    urgent = waiting("urgent", "1", memory_bytes=50 * GIB, priority=50)
    assert evicted(decide(snapshot, urgent)) == {"urgent": ["large"]}
    both = waiting("urgent", "1", memory_bytes=60 * GIB, priority=50)
    assert evicted(decide(snapshot, both)) == {"urgent": ["large", "small"]}


def test_a_gang_without_cards_gives_way_when_it_holds_the_processors():
    held = [replace(running("cpu", "n1/0", cpus=6.0), request=waiting("cpu", "1x0", cpus=6.0).request)]
    placement = replace(held[0].placement, members=(replace(held[0].placement.members[0], devices=()),))
    held = [replace(held[0], placement=placement)]
    assert evicted(decide(cluster(TEN, held), waiting("urgent", "1", cpus=8.0, priority=50))) == {"urgent": ["cpu"]}


def test_nobody_is_evicted_for_cards_where_the_processors_would_still_be_lacking():
    held = [running("low", "n1/0", cpus=1.0), running("fixed", "n1/1", cpus=8.0, preemptible=False)]
    result = decide(cluster(TEN, held), waiting("urgent", "1", cpus=8.0, priority=50))
    assert result.admits == () and list(why(result)) == ["urgent"]


def test_members_of_one_victim_on_two_nodes_give_processors_on_both():
    nodes = [machine("n1", 2, 10), machine("n2", 2, 10), machine("n3", 2, 4)]
    held = [running("wide", "n1/0", "n2/0", cpus=6.0), running("one", "n1/1", cpus=1.0)]
    result = decide(cluster(nodes, held), waiting("urgent", "2x1", cpus=8.0, priority=50))
    assert evicted(result) == {"urgent": ["wide"]} and sorted(admitted(result)["urgent"]) == ["n1", "n2"]


def test_a_gang_that_shrinks_gives_its_members_processors_back():
    nodes = [machine("n1", 2, 10), machine("n2", 2, 10)]
    gang = running("elastic", "n1/0", "n2/0", cpus=6.0, min_nodes=1)
    result = decide(cluster(nodes, [gang]), waiting("urgent", "1", cpus=8.0, priority=50), policy=Policy(resizing=True))
    (admit,) = result.admits
    assert [change.run_id for change in admit.resizes] == ["elastic"] and admit.victims == ()
    assert [member.node for member in admit.placement.members] == ["n2"]


def test_whoever_waits_for_processors_that_others_are_leaving_waits_for_them_to_go():
    held = [running("leaving", "n1/0", cpus=8.0, evicting=True)]
    (admit,) = decide(cluster(TEN, held), waiting("next", "1", cpus=8.0)).admits
    assert admit.waits_for == ("leaving",)


def test_the_second_that_needs_the_processors_of_one_victim_starts_before_it_has_gone():
    """The victim was told for the first, in the same cycle; for the second it was nobody who leaves."""
    nodes, held = [machine("n1", 4, 10)], [running("victim", "n1/0", cpus=8.0)]
    first = waiting("first", "1", cpus=4.0, priority=50, waited=60)
    result = decide(cluster(nodes, held), first, waiting("second", "1", cpus=6.0, priority=50))
    assert evicted(result) == {"first": ["victim"]}
    (second,) = [admit for admit in result.admits if admit.run_id == "second"]
    assert second.waits_for == ("victim",)


def test_who_lacks_the_memory_that_a_second_victim_leaves_is_asked_again_in_the_same_cycle():
    """It had been refused after the first eviction; the second left no device, so nobody was asked again."""
    held = [running("wide", "n1/0", "n1/1", "n1/2", ran=10.0), running("rich", "n1/3", memory_bytes=4 * GIB, ran=10.0)]
    snapshot = cluster([machine("n1", 4, 10, 4)], held)
    first = waiting("first", "2", priority=50, waited=900, cpus=None)
    second = waiting("second", "1", priority=40, memory_bytes=GIB, cpus=None)
    third = waiting("third", "1", priority=0, memory_bytes=GIB, cpus=None)
    result = decide(snapshot, first, third, second)
    assert evicted(result) == {"first": ["wide"], "second": ["rich"]}
    assert {admit.run_id: admit.waits_for for admit in result.admits}["third"] == ("rich", "wide")


@pytest.mark.parametrize("cpus", [None, 4.0])
def test_a_gang_that_declares_nothing_is_not_asked_to_leave_for_processors(cpus):
    held = [running("silent", "n1/0"), running("counted", "n1/1", cpus=8.0, last_commit_at=NOW - 900)]
    result = decide(cluster([machine("n1", 3, 10)], held), waiting("urgent", "1", cpus=cpus or 3.0, priority=50))
    assert evicted(result) == {"urgent": ["counted"]}


def test_a_gang_without_cards_that_lacks_processors_is_told_that_no_node_takes_work():
    result = decide(cluster(TEN, [busy()]), waiting("cpu", "1x0", cpus=4.0))
    assert texts(result)["cpu"] == "needs CPU only, 4 CPUs on each node; no open node has so much free for it"


def test_the_reason_names_the_processors_that_are_lacking():
    result = decide(cluster(TEN, [busy()]), HEAD)
    assert texts(result)["head"] == (
        "needs 1 GPU, 8 CPUs on each node; 1 free but not in this shape: 1 free on the best node, "
        "no node with enough free cards has 8 CPUs free"
    )


# ---- who moves, shrinks and grows -----------------------------------------------------------------------------------

MOVES, SIZES = Policy(consolidation=True), Policy(resizing=True)


def homes(result):
    """Who is moved → to which nodes."""
    return {m.run_id: [p.node for p in m.placement.members] for a in result.admits for m in a.moves}


def growths(result):
    """Who grows → its nodes afterwards."""
    return {g.run_id: [m.node for m in g.placement.members] for g in result.growths}


def two_halves(*cpus, memory_gib=None):
    """Two nodes of four cards, of which two are held on each: by `left`, which stays, and by `right`."""
    nodes = [machine(f"n{i}", 4, count, memory_gib) for i, count in enumerate(cpus, 1)]
    return nodes, running("left", "n1/0-1", preemptible=False, cpus=4.0)


@pytest.mark.parametrize(("cpus", "moves"), [(10, True), (8, True), (7, False)])
def test_a_gang_that_says_how_many_processors_it_needs_is_never_moved(cpus, moves):
    nodes, left = two_halves(cpus, 10)
    result = decide(cluster(nodes, [left, running("right", "n2/0-1", cpus=4.0)]), waiting("four", "4"), policy=MOVES)
    assert homes(result) == ({"right": ["n1"]} if moves else {})


def test_a_gang_is_moved_to_where_its_memory_is_free():
    nodes, left = two_halves(100, 100, memory_gib=64)
    nodes.append(machine("n3", 2, 100, 64))
    held = [left, running("other", "n1/2", memory_bytes=50 * GIB, preemptible=False)]
    held += [running("right", "n2/0", memory_bytes=20 * GIB), running("third", "n3/0", preemptible=False)]
    assert homes(decide(cluster(nodes, held), waiting("four", "4"), policy=MOVES)) == {"right": ["n3"]}


def test_two_that_move_to_one_node_do_not_count_the_same_processors():
    nodes = [machine("n1", 4, 6), machine("n2", 4, 12)]
    held = [running("stays", "n1/0", preemptible=False), running("a", "n2/0", cpus=4.0), running("b", "n2/1", cpus=4.0)]
    assert homes(decide(cluster(nodes, held), waiting("four", "4"), policy=MOVES)) == {}
    nodes[0] = machine("n1", 4, 8)
    assert homes(decide(cluster(nodes, held), waiting("four", "4"), policy=MOVES)) == {"a": ["n1"], "b": ["n1"]}


@pytest.mark.parametrize(("cpus", "moves"), [(9, False), (10, True)])
def test_the_gang_that_room_is_made_for_finds_its_processors_beside_the_one_that_moved(cpus, moves):
    """It takes two members' seats; on one of them the moved gang goes on."""
    nodes = [machine("n1", 3, cpus), machine("n2", 2, 10)]
    held = [running("stays", "n1/0", preemptible=False), running("right", "n2/0", cpus=2.0)]
    two = waiting("two", "2x1", cpus=8.0, preemptible=False)
    blocked = decide(cluster([nodes[0], machine("n2", 2, 8)], held), two, policy=MOVES)
    assert homes(blocked) == ({"right": ["n1"]} if moves else {})


def test_a_moved_gang_does_not_take_the_processors_that_are_kept_for_the_head_of_line():
    nodes = [machine("n1", 4, 12), machine("n2", 4, 10)]
    held = [busy("long", "n1/0", cpus=8.0, max_runtime_seconds=2 * HOUR), running("right", "n2/0-1", cpus=4.0,
                                                                                  priority=5)]  # fmt: skip
    head, urgent = waiting("head", "2", cpus=12.0, waited=900, preemptible=False), waiting("urgent", "4", priority=9)
    assert homes(decide(cluster(nodes, held), urgent, policy=MOVES)) == {"right": ["n1"]}
    (shadow,) = decide(cluster(nodes, held), head, policy=MOVES).shadows
    assert {uuid[:2] for uuid in shadow.devices} == {"n1"}
    result = decide(cluster(nodes, held, shadows=[shadow]), head, urgent, policy=MOVES)
    assert homes(result) == {} and evicted(result) == {"urgent": ["right"]}


def test_a_newcomer_is_given_the_cards_where_the_gang_that_moves_for_it_goes_on():
    """The data on n3 draws it there, beside whom it asked to move there."""
    nodes = [node(name, size) for name, size in (("n1", 2), ("n2", 2), ("n3", 2), ("n4", 1), ("n5", 1))]
    held = [running("thin", "n2/0", "n3/0")]
    wide = replace(waiting("wide", "2x2"), seconds_saved=(("n3", 60_000.0),))
    (admit,) = decide(cluster(nodes, held), wide, policy=MOVES).admits
    (move,) = admit.moves
    assert not set(move.placement.devices) & set(admit.placement.devices)


def elastic(*devices, most, **more):
    gang = running("elastic", *devices, **more)
    return replace(gang, request=replace(gang.request, nodes=most, min_nodes=1))


@pytest.mark.parametrize(("cpus", "grows"), [(4, True), (3, False)])
def test_a_running_gang_that_says_how_many_processors_it_needs_never_grows(cpus, grows):
    nodes = [machine("n1", 1, 8), machine("n2", 1, cpus), machine("n3", 1, 8)]
    held = [elastic("n1/0", most=2, cpus=4.0), running("solid", "n3/0", cpus=8.0)]
    result = decide(cluster(nodes, held), policy=SIZES)
    assert growths(result) == ({"elastic": ["n1", "n2"]} if grows else {})


def test_two_that_grow_onto_one_node_do_not_count_the_same_processors():
    nodes = [machine("n1", 1, 4), machine("n2", 1, 4), machine("n3", 2, 6)]
    held = [replace(elastic(f"n{i}/0", most=2, cpus=4.0), run_id=f"e{i}", started_at=NOW - 9000 + i) for i in (1, 2)]
    assert growths(decide(cluster(nodes, held), policy=SIZES)) == {"e1": ["n1", "n3"]}


def test_growth_takes_no_processors_that_somebody_waits_for():
    nodes = [machine("n1", 1, 8), machine("n2", 1, 8)]
    held = [elastic("n1/0", most=2, cpus=4.0), replace(running("w", "n2/0", cpus=1.0), placement=replace(
        running("w", "n2/0").placement, members=(replace(running("w", "n2/0").placement.members[0], devices=()),)),
        request=waiting("w", "1x0", cpus=1.0, preemptible=False).request)]  # fmt: skip
    assert growths(decide(cluster(nodes, held), policy=SIZES)) == {"elastic": ["n1", "n2"]}
    assert growths(decide(cluster(nodes, held), waiting("cpu", "1x0", cpus=8.0), policy=SIZES)) == {}


def test_growth_leaves_the_head_of_line_the_processors_that_are_kept_for_it():
    nodes = [machine("n1", 1, 8), machine("n2", 3, 10)]
    held = [elastic("n1/0", most=2, cpus=4.0, max_runtime_seconds=9 * HOUR), busy("long", "n2/0", cpus=4.0)]
    head = waiting("head", "1", cpus=8.0, waited=900, preemptible=False)
    result = decide(cluster(nodes, held), head, policy=SIZES)
    assert result.shadows and growths(result) == {}


@pytest.mark.parametrize(("cpus", "members"), [(8, 2), (3, 1)])
def test_an_elastic_gang_that_says_how_many_processors_it_needs_starts_with_one_member_only(cpus, members):
    nodes = [machine("n1", 1, 8), machine("n2", 1, cpus)]
    gang = waiting("e", "2x1", cpus=4.0, min_nodes=1)
    assert [len(nodes) for nodes in admitted(decide(cluster(nodes, []), gang)).values()] == [members]


def test_what_is_dealt_to_one_elastic_gang_is_not_dealt_to_another():
    nodes = [machine("n1", 1, 4), machine("n2", 1, 4), machine("n3", 2, 6)]
    gangs = [waiting(f"e{i}", "2x1", cpus=4.0, min_nodes=1, waited=100 - i) for i in (1, 2)]
    assert sorted(len(where) for where in admitted(decide(cluster(nodes, []), *gangs)).values()) == [1, 2]


def test_the_head_waits_for_the_end_of_a_gang_whose_member_has_left_its_node_already():
    nodes = [machine("n1", 1, 10), machine("n2", 3, 12)]
    gang = running("elastic", "n1/0", "n2/0", cpus=6.0, min_nodes=1, max_runtime_seconds=9 * HOUR)
    held = [gang, busy("b", "n2/1", cpus=5.0)]
    urgent = waiting("urgent", "1", cpus=3.0, priority=50, preemptible=False)
    result = decide(cluster(nodes, held), urgent, waiting("head", "1", cpus=8.0), policy=SIZES)
    assert [change.run_id for admit in result.admits for change in admit.resizes] == ["elastic"]
    assert {shadow.run_id: shadow.start for shadow in result.shadows} == {"head": NOW + HOUR}
