"""What users of other schedulers report about preemption, gangs, growth and answers; each test is named by its symptom.

Rows T12 to T60 of the survey of bug reports; the issue is cited where the symptom was seen.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.options import Option
from dsec_workers.scheduling.victims import Search
from tests.workers.scheduling.world import (
    NOW,
    admitted,
    carry_out,
    cluster,
    decide,
    evicted,
    node,
    running,
    team,
    waiting,
    why,
)


def test_t6_a_huge_job_loses_its_victims_to_an_earlier_job_of_the_same_cycle() -> None:
    """Kueue PR#13863, #13320, #14998: it asks again after what the cycle has decided, and takes others, or nobody."""
    nodes = [node(f"n{i}", 4) for i in range(3)]
    held = [running(f"v{i}", f"n{i}/0-3", last_commit_at=NOW - 10 * i) for i in range(3)]
    queue = [waiting("small", "4", priority=9, waited=90.0), waiting("huge", "2x4", priority=9, waited=60.0)]
    alone = decide(cluster(nodes, held), queue[1])
    assert evicted(alone) == {"huge": ["v0", "v1"]}, "whom it would take were it alone"
    result = decide(cluster(nodes, held), *queue)
    assert evicted(result) == {"small": ["v0"], "huge": ["v1", "v2"]}
    result = decide(cluster(nodes[:2], held[:2]), *queue)
    assert evicted(result) == {"small": ["v0"]}, "one is not enough for it, so nobody is told in vain"


def test_t12_the_scheduler_spins_over_its_candidates() -> None:
    """kueue#12541: a loop over victims that never got smaller."""
    held = [running(f"r{i:02}", f"n1/{i}", ran=3600.0 + i) for i in range(20)]
    result = decide(cluster([node("n1", 20)], held), waiting("w", "10", priority=9), policy=Policy(search_budget=200))
    assert evicted(result) == {"w": [f"r{i:02}" for i in range(10)]} and result.admits[0].optimal


def test_t12_a_cycle_that_has_used_up_its_budget_still_hands_out_free_room() -> None:
    held = [running(f"r{i:02}", f"n1/{i}", ran=3600.0 + 7 * i, last_commit_at=NOW - i * 13 % 29) for i in range(20)]
    queue = [waiting(f"p{i}", "7", priority=9 - i, waited=90.0 - i) for i in range(3)]
    policy = Policy(cycle_search_budget=1)
    result = decide(cluster([node("n1", 20), node("n2", 2)], held), *queue, waiting("small", "2"), policy=policy)
    assert admitted(result)["small"] == ["n2"] and len(evicted(result)) <= 1


def test_an_urgent_gang_of_half_a_full_cluster_is_planned_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, seen on 500 nodes: each of 2,000 victims was left out once, and everything checked anew, three times."""
    held = [running(f"r{i:03}", f"n{i // 8}/{i % 8}", ran=3600.0 + i) for i in range(320)]
    checked: list[int] = []
    whole = Search._holds

    def counting(search: Search, options: Collection[Option]) -> bool:
        checked.append(len(options))
        return whole(search, options)

    monkeypatch.setattr(Search, "_holds", counting)
    result = decide(cluster([node(f"n{i}", 8) for i in range(40)], held), waiting("urgent", "20x8", priority=9))
    assert {run: len(victims) for run, victims in evicted(result).items()} == {"urgent": 160}
    assert len(checked) < 10


def test_nobody_is_evicted_in_vain_among_many() -> None:
    """Who is cheapest for each device is taken first, and spared again where the larger one beside it is enough."""
    held = [running(f"small{i}", f"n{i}/0", last_commit_at=NOW - 1) for i in range(12)]
    held += [running(f"large{i}", f"n{i}/1-8", last_commit_at=NOW - 2) for i in range(12)]
    result = decide(cluster([node(f"n{i}", 9) for i in range(12)], held), waiting("wide", "10x8", priority=9))
    assert all(run.startswith("large") for run in evicted(result)["wide"]) and len(evicted(result)["wide"]) == 10


def test_t13_a_gang_is_evicted_for_another_and_evicts_it_in_turn() -> None:
    """volcano#377 and others, and ours: reclaim, then the reclaiming team borrows, then priority brings back the first.

    a owns 2 of 4; r0 of b borrows 3 with the higher priority. q1 reclaims from it, q0 borrows beside q1.
    """
    teams, nodes = [team("a", 2), team("b", 0)], [node("n1", 4)]
    r0 = running("r0", "n1/0-2", team="b", priority=1)
    queue = [waiting("q1", "2", waited=9000.0), waiting("q0", "1", waited=0.0)]
    first = decide(cluster(nodes, [r0], teams), *queue)
    assert evicted(first) == {"q1": ["r0"]} and set(admitted(first)) == {"q0", "q1"}

    after = [
        replace(running(a.run_id, *a.placement.devices, team="a"), placement=a.placement) for a in first.admits
    ]  # fmt: skip
    back = waiting("r0", "3", team="b", priority=1, evictions=1, evicted_for=("q1",))
    result = decide(cluster(nodes, after, teams), back)
    assert result.admits == () and why(result) == {"r0": "waits-for-capacity"}
    stranger = replace(back, run_id="other", evicted_for=())
    assert "q1" in evicted(decide(cluster(nodes, after, teams), stranger))["other"], "the right itself stands"


def test_t13_whoever_was_evicted_for_a_gang_is_bound_by_its_reservation_like_anybody() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    held = [running("busy", "n1/0-3", max_runtime_seconds=7200.0, preemptible=False)]
    head = waiting("head", "2x4", waited=9000.0)
    first = decide(cluster(nodes, held), head)
    snapshot = cluster(nodes, held, shadows=first.shadows)
    strong = waiting("strong", "4", priority=5, preemptible=False)
    assert list(admitted(decide(snapshot, head, strong))) == ["strong"]
    assert admitted(decide(snapshot, head, replace(strong, evicted_for=("head",)))) == {}


def test_t13_nobody_passes_on_a_condition_that_the_head_of_line_could_not_enforce() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    held = [running("busy", "n1/0-3", max_runtime_seconds=7200.0, preemptible=False)]
    passer = waiting("passer", "4", waited=1.0)
    assert list(admitted(decide(cluster(nodes, held), waiting("head", "2x4", waited=9000.0), passer))) == ["passer"]
    head = waiting("head", "2x4", waited=9000.0, evicted_for=("passer",))
    assert admitted(decide(cluster(nodes, held), head, passer)) == {}


def test_t19_a_killed_victim_counts_as_done() -> None:
    """volcano#394: evicted is not succeeded: it waits again, in its old place, and starts when there is room."""
    snapshot = cluster([node("n1", 4)], [running("victim", "n1/0-3")])
    queue = [waiting("new", "4", priority=9)]
    told = carry_out(snapshot, decide(snapshot, *queue), queue)
    assert admitted(decide(told, waiting("victim", "4", waited=9000.0))) == {}, "it has not left yet"
    gone = told.apply(finished=["victim", "new"])
    back = waiting("victim", "4", waited=9000.0, evictions=1, evicted_for=("new",))
    assert list(admitted(decide(gone, waiting("younger", "4"), back))) == ["victim"]


def test_nine_of_ten_members_have_room_and_keep_it_from_others() -> None:
    nodes = [node(f"n{i}", 1) for i in range(9)]
    result = decide(cluster([*nodes, node("n9", 1)], [running("r", "n9/0", preemptible=False)]), waiting("ten", "10x1"))
    assert result.admits == () and why(result) == {"ten": "waits-for-capacity"}
    passer = waiting("one", "1", waited=1.0, max_runtime_seconds=60.0)
    held = [running("r", "n9/0", preemptible=False, max_runtime_seconds=7200.0)]
    assert list(admitted(decide(cluster([*nodes, node("n9", 1)], held), waiting("ten", "10x1"), passer))) == ["one"]


def test_a_later_gang_of_the_cycle_is_given_what_an_earlier_one_took() -> None:
    queue = [waiting("first", "2x2", waited=90.0), waiting("second", "2x2", waited=80.0)]
    result = decide(cluster([node("n1", 2), node("n2", 2), node("n3", 2)]), *queue)
    assert [len(nodes) for nodes in admitted(result).values()] == [2] and "second" in why(result)


def test_t29_interleaved_gangs_wait_for_each_other() -> None:
    """koordinator#872: with room for one of four, one starts whole, then the next."""
    nodes = [node(f"n{i}", 1) for i in range(3)]
    left = [waiting(name, "3x1", waited=90.0 - i, max_runtime_seconds=600.0) for i, name in enumerate("acbd")]
    started = []
    while left:
        result = decide(cluster(nodes), *left)
        assert [len(on) for on in admitted(result).values()] == [3]
        started += list(admitted(result))
        left = [gang for gang in left if gang.run_id not in started]
    assert started == list("acbd")


def test_t34_a_late_member_lands_outside_the_gangs_domain() -> None:
    """Koordinator PR#3181, grove#648."""
    nodes = [node(f"{d}{i}", 2, domain=d) for d in "xy" for i in range(2)]
    small = running("e", "x0/0-1", topology=Topology.DOMAIN)
    grown = replace(small, request=replace(small.request, nodes=3, min_nodes=1))
    (growth,) = decide(cluster(nodes, [grown]), policy=Policy(resizing=True)).growths
    assert [member.node for member in growth.placement.members] == ["x0", "x1"]


def test_t41_a_trial_that_failed_leaves_devices_taken() -> None:
    """k8s#140436, volcano PR#5103: everything a search tried is gone when it came to nothing."""
    held = [running("low", "n1/0-1"), running("high", "n1/2-3", priority=50)]
    snapshot = cluster([node("n1", 4), node("n2", 2)], held)
    before = snapshot.holder.copy(), snapshot.next_holder.copy()
    tried = waiting("four", "4", priority=9, preemptible=False)
    result = decide(snapshot, tried, waiting("two", "2", max_runtime_seconds=60.0), policy=Policy(consolidation=True))
    assert admitted(result) == {"two": ["n2"]}
    assert np.array_equal(snapshot.holder, before[0]) and np.array_equal(snapshot.next_holder, before[1])


def test_t56_a_job_that_runs_is_still_called_unschedulable() -> None:
    """KAI#1888, volcano PR#4978."""
    snapshot, gang = cluster([node("n1", 4)], [running("r", "n1/0-3", preemptible=False)]), waiting("g", "4")
    assert "g" in why(decide(snapshot, gang))
    freed = snapshot.apply(finished=["r"])
    result = decide(freed, gang)
    assert list(admitted(result)) == ["g"] and why(result) == {}
    assert why(decide(carry_out(freed, result, [gang]), gang)) == {}


def test_t59_nobody_can_say_when_a_job_will_start_or_what_if() -> None:
    """kueue#13159 and four more: the answer comes from the plan itself, on the same snapshot, and changes nothing."""
    held = [running("r", "n1/0-3", ran=600.0, max_runtime_seconds=1800.0, preemptible=False)]
    snapshot = cluster([node("n1", 4)], held)
    first, second = waiting("first", "4", waited=90.0, max_runtime_seconds=600.0), waiting("second", "4")
    etas = {hold.run_id: hold.eta for hold in decide(snapshot, first, second).holds}
    assert etas == {"first": NOW + 1200.0, "second": NOW + 1800.0}
    asked = decide(snapshot, first, second, waiting("imagined", "1", priority=9))
    assert "imagined" in why(asked)
    assert {hold.run_id: hold.eta for hold in decide(snapshot, first, second).holds} == etas


def test_t60_members_of_one_gang_get_different_verdicts_and_a_node_serves_one_at_a_time() -> None:
    """volcano#3976, HAMi#1655, scheduler-plugins#450."""
    singles = [waiting(f"s{i}", "1") for i in range(8)]
    result = decide(cluster([node("n1", 8)]), *singles, waiting("wide", "3x8", min_nodes=1))
    assert len(admitted(result)) == 8, "one node, one cycle, eight gangs"
    assert [hold.run_id for hold in result.holds] == ["wide"], "one verdict for the whole gang"


def test_replicas_that_must_not_fail_together_wait_behind_work_that_would_make_room_in_another_rack() -> None:
    """Ours: two free nodes of one rack looked like room enough, so nobody was asked, and nothing started."""
    machines = [node(name, 2, rack=name[:2]) for name in ("ra0", "ra1", "rb0", "rb1")]
    held = [running("dear", "rb0/0-1", last_commit_at=NOW - 3000), running("cheap", "rb1/0-1")]
    result = decide(cluster(machines, held), waiting("apart", "2x2", topology=Topology.SPREAD, priority=5))
    assert evicted(result) == {"apart": ["cheap"]} and result.admits[0].optimal
    assert admitted(result)["apart"] == ["ra0", "rb1"]
    three = waiting("three", "3x2", topology=Topology.SPREAD, priority=5)
    assert why(decide(cluster(machines, held), three)) == {"three": "never-fits"}


def test_a_node_of_no_known_rack_counts_as_one_more_rack_to_evict_in() -> None:
    machines = [node("ra0", 2, rack="ra"), replace(node("lost", 2), topology=())]
    held = [running("r", "lost/0-1")]
    result = decide(cluster(machines, held), waiting("apart", "2x2", topology=Topology.SPREAD, priority=5))
    assert result.admits == () and evicted(result) == {}
