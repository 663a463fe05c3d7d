"""Who may be evicted for whom, at what price, and that nobody is evicted in vain."""

import pytest

from dsec_blocks.model.requests import Kind, Topology
from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.cost import eviction_cost, snapshot_chance
from tests.workers.scheduling.world import (
    NOW,
    POLICY,
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

FULL = [node("n1", 4)]
NOMINAL = [team("a", 2), team("b", 2)]


@pytest.mark.parametrize(
    ("victim", "preemptor", "teams", "expected"),
    [
        pytest.param({"priority": 0}, {"priority": 1}, [team("a", 4)], True, id="a lower priority gives way"),
        pytest.param({"priority": 1}, {"priority": 1}, [team("a", 4)], False, id="an equal priority does not"),
        pytest.param({"priority": 2}, {"priority": 1}, [team("a", 4)], False, id="a higher priority does not"),
        pytest.param(
            {"priority": 0, "kind": Kind.INFERENCE}, {"priority": 9}, [team("a", 4)], False, id="inference never does"
        ),
        pytest.param(
            {"priority": 0, "preemptible": False},
            {"priority": 9},
            [team("a", 4)],
            False,
            id="nor what is not preemptible",
        ),
        pytest.param({"team": "b", "priority": 9}, {}, NOMINAL, True, id="a borrower is reclaimed at any priority"),
        pytest.param(
            {"team": "b", "priority": 9},
            {},
            [team("a", 2), team("b", 4)],
            False,
            id="a team within its nominal quota is not reclaimed",
        ),
        pytest.param(
            {"team": "b", "priority": 0},
            {"priority": 1},
            [team("a", 0), team("b", 4)],
            False,
            id="a borrower does not evict from a team that does not borrow",
        ),
        pytest.param(
            {"team": "b", "priority": 0},
            {"priority": 1},
            [team("a", 0), team("b", 2)],
            True,
            id="a borrower evicts lower priority from another borrower",
        ),
        pytest.param(
            {"team": "b", "priority": 1},
            {"priority": 1},
            [team("a", 0), team("b", 2)],
            False,
            id="but not equal priority",
        ),
    ],
)
def test_rights(victim, preemptor, teams, expected):
    snapshot = cluster(FULL, [running("victim", "n1/0-3", **victim)], teams)
    result = decide(snapshot, waiting("new", "2", **preemptor))
    assert evicted(result) == ({"new": ["victim"]} if expected else {})


def test_t13_a_team_that_was_reclaimed_cannot_reclaim_its_way_back():
    teams = [team("a", 4), team("b", 4)]
    nodes = [node("n1", 8)]
    snapshot = cluster(nodes, [running("b1", "n1/0-3", team="b"), running("b2", "n1/4-7", team="b")], teams)
    first = decide(snapshot, waiting("a1", "4", team="a"))
    assert evicted(first) == {"a1": ["b1"]}
    after = cluster(nodes, [running("a1", "n1/0-3", team="a"), running("b2", "n1/4-7", team="b")], teams)
    assert decide(after, waiting("b1", "4", team="b", waited=9e5)).admits == ()


def test_t13_reclaim_stops_when_the_victims_team_no_longer_borrows():
    teams = [team("a", 6), team("b", 4)]
    held = [running(f"b{i}", f"n1/{i}", team="b", priority=9) for i in range(8)]
    result = decide(cluster([node("n1", 8)], held, teams), waiting("a1", "6", team="a"))
    assert result.admits == ()  # b would have to go down to 2, and is a borrower only until 4
    assert len(evicted(decide(cluster([node("n1", 8)], held, teams), waiting("a1", "4", team="a")))["a1"]) == 4


def test_t14_need_one_evict_one():
    held = [running(f"r{i}", f"n1/{i}") for i in range(8)]
    result = decide(cluster([node("n1", 8)], held), waiting("one", "1", priority=9))
    assert len(evicted(result)["one"]) == 1


def test_t14_one_large_victim_is_not_joined_by_small_ones_it_makes_needless():
    held = [running("small", "n1/0", last_commit_at=NOW - 1), running("large", "n1/1-3")]
    result = decide(cluster(FULL, held), waiting("three", "3", priority=9))
    assert evicted(result) == {"three": ["large"]}


def test_t15_nobody_is_evicted_for_a_gang_that_would_not_fit_all_the_same():
    held = [running("low", "n1/0-1"), running("high", "n1/2-3", priority=50)]
    result = decide(cluster(FULL, held), waiting("four", "4", priority=9))
    assert result.admits == () and why(result) == {"four": "waits-for-capacity"}


def test_t17_of_equal_cost_the_newest_goes():
    held = [running("older", "n1/0-1", ran=9000), running("newer", "n1/2-3", ran=4000)]
    assert evicted(decide(cluster(FULL, held), waiting("two", "2", priority=9))) == {"two": ["newer"]}


def test_the_gang_with_a_stale_checkpoint_is_spared():
    held = [running("stale", "n1/0-1", last_commit_at=NOW - 900), running("fresh", "n1/2-3", last_commit_at=NOW - 9)]
    assert evicted(decide(cluster(FULL, held), waiting("two", "2", priority=9))) == {"two": ["fresh"]}


def test_two_cheap_gangs_go_before_one_dear_one_and_the_cost_says_so():
    held = [
        running("dear", "n1/0-3", last_commit_at=NOW - 1000),
        running("c1", "n2/0-1", last_commit_at=NOW - 10),
        running("c2", "n2/2-3", last_commit_at=NOW - 10),
    ]
    result = decide(cluster([node("n1", 4), node("n2", 4)], held), waiting("four", "4", priority=9))
    assert evicted(result) == {"four": ["c1", "c2"]}
    each = 2 * (POLICY.checkpoint_seconds + POLICY.restart_seconds + 10)
    assert [victim.cost for victim in result.admits[0].victims] == [each, each]


def test_the_cost_is_the_formula_of_the_design():
    gang = running(
        "g", "n1/0-3", last_commit_at=NOW - 100, evictions=2, kind=Kind.INTERACTIVE, checkpoint_seconds=5.0,
        restart_seconds=7.0,
    )  # fmt: skip
    policy = Policy(eviction_lambda_seconds=11, class_penalty_seconds={Kind.INTERACTIVE: 13})
    assert eviction_cost(gang, policy, NOW) == 4 * (5 + 7 + 100 + 2 * 11 + 13)


def test_a_gang_without_a_commit_stakes_all_its_elapsed_time():
    gang = running(
        "g", "n1/0", ran=500, first_commit_at=None, last_commit_at=None, checkpoint_seconds=0, restart_seconds=0
    )
    assert eviction_cost(gang, POLICY, NOW) == 500


def test_a_commit_of_an_earlier_attempt_stakes_only_this_one():
    gang = running("g", "n1/0", ran=50, last_commit_at=NOW - 900, checkpoint_seconds=0, restart_seconds=0)
    assert eviction_cost(gang, POLICY, NOW) == 50


def test_a_snapshot_that_meets_the_grace_saves_what_is_at_stake():
    quick = running("q", "n1/0", has_on_evict=True, checkpoint_seconds=1.0, last_commit_at=NOW - 1000)
    slow = running("s", "n1/0", has_on_evict=True, checkpoint_seconds=60.0, last_commit_at=NOW - 1000)
    deaf = running("d", "n1/0", checkpoint_seconds=1.0, last_commit_at=NOW - 1000)
    assert snapshot_chance(deaf, POLICY) == 0 < snapshot_chance(slow, POLICY) < 0.5 < snapshot_chance(quick, POLICY)
    assert eviction_cost(quick, POLICY, NOW) < eviction_cost(deaf, POLICY, NOW)


def test_t21_a_gang_that_has_not_committed_since_its_start_is_left_alone_for_its_minimum_run():
    fresh = running("fresh", "n1/0-3", ran=POLICY.min_run_seconds - 1, first_commit_at=None, last_commit_at=None)
    assert decide(cluster(FULL, [fresh]), waiting("new", "4", priority=9)).admits == ()
    committed = running("fresh", "n1/0-3", ran=10, last_commit_at=NOW)
    assert evicted(decide(cluster(FULL, [committed]), waiting("new", "4", priority=9))) == {"new": ["fresh"]}
    silent = running("silent", "n1/0-3", ran=POLICY.min_run_seconds + 1, first_commit_at=None, last_commit_at=None)
    assert evicted(decide(cluster(FULL, [silent]), waiting("new", "4", priority=9))) == {"new": ["silent"]}


def test_t20_a_gang_with_an_eviction_in_flight_evicts_nobody_else():
    held = [
        running("leaving", "n1/0-1", evicting=True, evicting_for="new"),
        running("other", "n1/2-3"),
    ]
    result = decide(cluster(FULL, held), waiting("new", "4", priority=9))
    assert result.admits == () and why(result) == {"new": "waits-for-victims"}


def test_t20_evictions_in_one_cycle_are_bounded():
    held = [running(f"r{i}", f"n1/{i}") for i in range(8)]
    queue = [waiting(f"w{i}", "1", priority=9) for i in range(8)]
    result = decide(cluster([node("n1", 8)], held), *queue, policy=Policy(max_preemptions=3))
    assert len(evicted(result)) == 3


def test_a_victim_that_is_leaving_already_is_not_charged_again():
    held = [running("leaving", "n1/0-1", evicting=True), running("other", "n1/2-3")]
    result = decide(cluster(FULL, held), waiting("new", "2", priority=9))
    assert result.admits[0].victims == () and result.admits[0].waits_for == ("leaving",)
    result = decide(cluster(FULL, held), waiting("new", "4", priority=9))
    assert evicted(result) == {"new": ["other"]} and result.admits[0].waits_for == ("leaving",)


def test_t23_the_room_that_victims_leave_is_promised_to_the_preemptor():
    queue = [waiting("new", "4", priority=9)]
    snapshot = cluster(FULL, [running("victim", "n1/0-3")])
    first = decide(snapshot, *queue)
    after = carry_out(snapshot, first, queue)
    result = decide(after, waiting("sneak", "1", priority=5, waited=9000))
    assert result.admits == () and why(result) == {"sneak": "waits-for-capacity"}


def test_room_that_a_vanished_preemptor_leaves_behind_is_for_all():
    held = [running("leaving", "n1/0-3", evicting=True, evicting_for="gone")]
    result = decide(cluster(FULL, held), waiting("any", "4"))
    assert admitted(result) == {"any": ["n1"]} and result.admits[0].waits_for == ("leaving",)


def test_room_of_victims_is_kept_for_their_preemptor_while_it_waits_without_a_promise():
    held = [
        running("leaving", "n1/0-1", evicting=True, evicting_for="new"),
        running("stays", "n1/2-3", preemptible=False),
    ]
    result = decide(cluster(FULL, held), waiting("new", "4", priority=9), waiting("small", "2", priority=9))
    assert admitted(result) == {}


def test_t24_a_victim_of_this_cycle_is_neither_placed_again_nor_evicted_twice():
    held = [running("v1", "n1/0-3"), running("v2", "n2/0-3")]
    queue = [waiting("p1", "4", priority=9), waiting("p2", "4", priority=8), waiting("v1", "4", waited=9e4)]
    result = decide(cluster([node("n1", 4), node("n2", 4)], held), *queue)
    victims = [victim for names in evicted(result).values() for victim in names]
    assert sorted(victims) == ["v1", "v2"] and "v1" not in admitted(result)


def test_what_a_large_victim_leaves_over_goes_to_the_next_without_another_eviction():
    held = [running("large", "n1/0-3"), running("keep", "n2/0-3", last_commit_at=NOW - 5000)]
    queue = [waiting("p1", "2", priority=9), waiting("p2", "2", priority=9, waited=50)]
    result = decide(cluster([node("n1", 4), node("n2", 4)], held), *queue)
    assert evicted(result) == {"p1": ["large"]}
    assert [admit.waits_for for admit in result.admits] == [(), ("large",)]


def test_the_whole_gang_of_a_victim_leaves_and_its_other_nodes_are_counted():
    held = [
        running("wide", "n1/0-3", "n2/0-3", last_commit_at=NOW - 50),
        running("narrow", "n3/0-3", last_commit_at=NOW - 60),
    ]
    nodes = [node(f"n{i}", 4) for i in (1, 2, 3)]
    assert evicted(decide(cluster(nodes, held), waiting("four", "4", priority=9))) == {"four": ["narrow"]}
    assert evicted(decide(cluster(nodes, held), waiting("eight", "2x4", priority=9))) == {"eight": ["wide"]}


def test_victims_are_chosen_inside_one_domain_when_the_gang_needs_one():
    nodes = [node(f"{r}{i}", 2, domain=r) for r in "xy" for i in range(2)]
    stake = {"x0": 5, "x1": 50, "y0": 5, "y1": 55}
    held = [running(name, f"{name}/0-1", last_commit_at=NOW - seconds) for name, seconds in stake.items()]
    result = decide(cluster(nodes, held), waiting("pair", "2x2", topology=Topology.DOMAIN, priority=9))
    assert evicted(result) == {"pair": ["x0", "x1"]}
    result = decide(cluster(nodes, held), waiting("pair", "2x2", priority=9))
    assert evicted(result) == {"pair": ["x0", "y0"]}


def test_a_team_at_its_limit_may_replace_its_own_lower_priority_gang():
    snapshot = cluster([node("n1", 4)], [running("low", "n1/0-1")], [team("a", 2, borrow=0)])
    result = decide(snapshot, waiting("high", "2", priority=9))
    assert evicted(result) == {"high": ["low"]}
    assert why(decide(snapshot, waiting("same", "2"))) == {"same": "waits-for-quota"}


def test_a_gang_that_cannot_be_evicted_never_borrows():
    teams = [team("a", 2, borrow=2), team("b", 2)]
    snapshot = cluster(FULL, [running("r", "n1/0", team="a")], teams)
    assert why(decide(snapshot, waiting("svc", "2", kind=Kind.INFERENCE))) == {"svc": "waits-for-quota"}
    assert admitted(decide(snapshot, waiting("train", "2"))) == {"train": ["n1"]}


def test_above_the_exact_size_the_set_is_still_minimal_and_says_it_is_not_proved():
    held = [running(f"r{i:02}", f"n{i // 8}/{i % 8}", last_commit_at=NOW - 10 * i) for i in range(32)]
    snapshot = cluster([node(f"n{i}", 8) for i in range(4)], held)
    admit = decide(snapshot, waiting("wide", "2x8", priority=9)).admits[0]
    assert sorted(v.run_id for v in admit.victims) == [f"r{i:02}" for i in range(16)] and not admit.optimal


def test_a_search_that_runs_out_of_budget_says_so_or_evicts_nobody():
    held = [running(f"r{i:02}", f"n{i // 4}/{i % 4}", last_commit_at=NOW - 7 * i) for i in range(16)]
    snapshot = cluster([node(f"n{i}", 4) for i in range(4)], held)
    result = decide(snapshot, waiting("wide", "2x4", priority=9), policy=Policy(search_budget=1))
    assert result.admits == () or not result.admits[0].optimal
    assert decide(snapshot, waiting("wide", "2x4", priority=9)).admits[0].optimal
