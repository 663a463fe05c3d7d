"""Teams in a tree: whose quota is whose, who may borrow how much from whom, and who may take it back."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.victims import Search
from tests.workers.scheduling.world import (
    NOW,
    admitted,
    cluster,
    decide,
    evicted,
    node,
    running,
    team,
    texts,
    waiting,
    why,
)

ORG = Team(name="org", nominal_devices=0)


NONE_OF_ITS_OWN = Team(name="org", nominal_devices=0, borrow_devices=0)


def child(name: str, nominal: int, *, parent: str = "org", **more) -> Team:
    return Team(name=name, nominal_devices=nominal, parent=parent, **more)


def started(teams: Sequence[Team], held: Sequence, *queue, gpus: int = 8):
    return decide(cluster([node("n1", gpus)], held, teams), *queue)


# ---- what a team may use -------------------------------------------------------------------------------------------


def test_a_child_is_bound_by_its_parents_limit() -> None:
    teams = [
        Team(name="org", nominal_devices=0, borrow_devices=0),
        child("a", 2),
        child("b", 2),
        Team(name="x", nominal_devices=4),
    ]
    held = [running("ra", "n1/0-1", team="a")]
    result = started(teams, held, waiting("g", "4", team="a"), waiting("small", "2", team="a", waited=10))
    assert why(result) == {"g": "waits-for-quota"}, "a may borrow what b leaves idle, and no more"
    assert admitted(result) == {"small": ["n1"]}
    assert texts(result)["g"] == "needs 4 GPUs on one node; team a uses 4 of the 4 GPUs it may hold"


def test_what_a_team_does_not_lend_stays_free_for_it() -> None:
    teams = [Team(name="a", nominal_devices=6, lend_devices=2), Team(name="b", nominal_devices=2)]
    result = started(teams, [], waiting("big", "5", team="b"), waiting("fits", "4", team="b", waited=1))
    assert why(result) == {"big": "waits-for-quota"}
    assert admitted(result) == {"fits": ["n1"]}, "2 of its own and 2 that a lends"
    assert admitted(started(teams, [running("r", "n1/0-3", team="b")], waiting("own", "4", team="a"))) == {
        "own": ["n1"]
    }


def test_a_cohort_lends_no_more_than_it_says_whoever_inside_it_is_idle() -> None:
    teams = [
        Team(name="org", nominal_devices=0, lend_devices=1),
        child("a", 3),
        child("b", 3),
        Team(name="x", nominal_devices=2),
    ]
    assert why(started(teams, [], waiting("g", "4", team="x"))) == {"g": "waits-for-quota"}
    assert admitted(started(teams, [], waiting("g", "3", team="x"))) == {"g": ["n1"]}
    assert admitted(started(teams, [], waiting("g", "6", team="a"))) == {"g": ["n1"]}, "inside it nothing is kept back"


def test_what_cannot_be_evicted_never_borrows_from_a_sibling() -> None:
    teams = [ORG, child("a", 2), child("b", 6)]
    result = started(teams, [], waiting("g", "3", team="a", preemptible=False))
    assert why(result) == {"g": "over-team-limit"}


def test_a_cohorts_own_quota_is_borrowed_by_its_children() -> None:
    teams = [
        Team(name="org", nominal_devices=4, borrow_devices=0),
        child("a", 0),
        child("b", 0),
        Team(name="x", nominal_devices=4),
    ]
    assert admitted(started(teams, [], waiting("g", "4", team="a"))) == {"g": ["n1"]}
    assert why(started(teams, [], waiting("g", "5", team="a"))) == {"g": "over-team-limit"}


KEEPS_ONE = Team(name="keeps", nominal_devices=1, lend_devices=0)


def test_the_owner_of_the_last_free_device_gets_it_though_his_cohort_uses_more_than_the_nodes_that_are_left() -> None:
    teams = [ORG, child("a", 0), child("c", 1, lend_devices=2)]
    held = [running("cordoned", "n0/0"), running("r", "n1/0-2")]
    snapshot = cluster([node("n0", 1, schedulable=False), node("n1", 4)], held, teams)
    result = decide(snapshot, waiting("own", "1", team="c", preemptible=False))
    assert (admitted(result), evicted(result)) == ({"own": ["n1"]}, {})


def test_runs_on_a_cordoned_node_do_not_use_up_the_room_of_the_nodes_that_are_left() -> None:
    teams = [Team(name="a", nominal_devices=0), Team(name="b", nominal_devices=3), KEEPS_ONE]
    snapshot = cluster([node("n1", 8, schedulable=False), node("n2", 8)], [running("r", "n1/0-7")], teams)
    own = decide(snapshot, waiting("own", "3", team="b"))
    assert (admitted(own), evicted(own)) == ({"own": ["n2"]}, {}), "8 GPUs are free, so nobody need go"
    assert admitted(decide(snapshot, waiting("borrows", "7"))) == {"borrows": ["n2"]}
    assert admitted(decide(snapshot, waiting("all", "8"))) == {}, "one of the 8 is kept"


def test_evicting_from_a_cordoned_node_leaves_nothing_of_what_another_keeps_to_the_one_who_asked() -> None:
    teams = [Team(name="a", nominal_devices=0), Team(name="b", nominal_devices=1), KEEPS_ONE]
    held = [
        running("cheap", "n1/0", has_on_evict=True, ran=700.0),
        running("dear", "n2/0-2", last_commit_at=NOW - 3000),
    ]
    snapshot = cluster([node("n1", 1, schedulable=False), node("n2", 4)], held, teams)
    assert evicted(decide(snapshot, waiting("own", "1", team="b"))) == {"own": ["dear"]}


def test_what_a_sick_device_runs_counts_as_the_pools_only_while_it_runs() -> None:
    teams = [Team(name="a", nominal_devices=0), Team(name="b", nominal_devices=2), KEEPS_ONE]
    held = [running("sick", "n1/0"), running("well", "n1/1-2", preemptible=False)]
    snapshot = cluster([node("n1", 4, frozen=[0])], held, teams)
    assert admitted(decide(snapshot, waiting("own", "1", team="b"))) == {}, "the last free GPU is kept by another"


# ---- who may take back ---------------------------------------------------------------------------------------------


def test_a_child_reclaims_its_quota_from_a_sibling_at_any_priority() -> None:
    teams = [NONE_OF_ITS_OWN, child("a", 4), child("b", 4)]
    held = [running("one", "n1/0-3", team="b", priority=50), running("two", "n1/4-7", team="b", priority=50)]
    assert len(evicted(started(teams, held, waiting("g", "4", team="a")))["g"]) == 1


def test_a_sibling_within_its_quota_is_not_asked_though_the_cohort_borrows() -> None:
    teams = [ORG, child("a", 2), child("b", 2), team("x", 4)]
    held = [running("ra", "n1/0-5", team="a"), running("rb", "n1/6-7", team="b")]
    result = started(teams, held, waiting("g", "4", team="x"))
    assert evicted(result) == {"g": ["ra"]}, "a uses 4 beyond its own; b only its own"


def test_a_cohort_within_its_quota_is_not_asked_though_one_of_its_teams_borrows_inside() -> None:
    teams = [ORG, child("a", 2), child("b", 2), team("x", 4)]
    held = [running("ra", "n1/0-3", team="a"), running("rx", "n1/4-7", team="x", priority=0)]
    result = started(teams, held, waiting("g", "4", team="x"))
    assert evicted(result) == {} and why(result) == {"g": "waits-for-capacity"}


def test_a_cohort_takes_back_what_it_owns_together_for_whichever_team_of_it() -> None:
    teams = [Team(name="org", nominal_devices=0), child("a", 0), child("b", 4), team("x", 4)]
    held = [running("x1", "n1/0-3", team="x"), running("x2", "n1/4-7", team="x")]
    assert len(evicted(started(teams, held, waiting("g", "4", team="a")))["g"]) == 1


def test_reclaiming_stops_where_the_victims_cohort_no_longer_borrows() -> None:
    teams = [ORG, child("a", 2), child("b", 1), team("x", 5)]
    held = [running(f"a{i}", f"n1/{i}", team="a") for i in range(4)] + [
        running(f"b{i}", f"n1/{4 + i}", team="b") for i in range(4)
    ]
    result = started(teams, held, waiting("g", "5", team="x"))
    victims = evicted(result)["g"]
    assert len(victims) == 5
    assert sum(name.startswith("a") for name in victims) <= 2 and sum(name.startswith("b") for name in victims) <= 3
    too_much = started(teams, held, waiting("g", "6", team="x"))
    assert why(too_much)["g"] in ("over-team-limit", "waits-for-capacity") and evicted(too_much) == {}


def test_who_was_reclaimed_from_across_the_tree_cannot_reclaim_its_way_back() -> None:
    teams = [ORG, child("a", 4), child("b", 0), team("x", 4)]
    held = [running("r", "n1/0-7", team="x")]
    assert evicted(started(teams, held, waiting("g", "4", team="b"))) == {"g": ["r"]}
    back = started(teams, [running("g", "n1/0-3", team="b")], waiting("r", "8", team="x"))
    assert evicted(back) == {}


# ---- one person ----------------------------------------------------------------------------------------------------


def test_one_person_holds_no_more_than_the_team_lets_one_hold() -> None:
    teams = [Team(name="a", nominal_devices=8, user_devices=2)]
    queue = [waiting(f"ann{i}", "1", waited=100 - i, created_by="ann") for i in range(3)]
    result = started(teams, [], *queue, waiting("bob", "1", waited=1, created_by="bob"))
    assert sorted(admitted(result)) == ["ann0", "ann1", "bob"]
    assert why(result) == {"ann2": "waits-for-quota"}
    assert "one person may hold 2 GPUs, and ann would hold more" in texts(result)["ann2"]


def test_runs_that_name_nobody_count_as_one_person() -> None:
    teams = [Team(name="a", nominal_devices=8, user_devices=2)]
    result = started(teams, [running("r", "n1/0-1", team="a")], waiting("g", "1"))
    assert "runs that name no user (tag one with user:NAME) would hold more" in texts(result)["g"]


def test_a_request_larger_than_one_person_may_ever_hold_is_refused() -> None:
    teams = [Team(name="a", nominal_devices=8, user_devices=2)]
    assert why(started(teams, [], waiting("g", "3", created_by="ann"))) == {"g": "over-team-limit"}


# ---- rank ----------------------------------------------------------------------------------------------------------


def test_the_share_is_that_of_the_worst_on_the_path() -> None:
    teams = [
        team("big", 0),
        child("a", 0, parent="big"),
        child("b", 0, parent="big"),
        Team(name="x", nominal_devices=0),
    ]
    held = [running("rb", "n1/0-3", team="b")]
    result = started(teams, held, waiting("of-a", "4", team="a", waited=61), waiting("of-x", "4", team="x"))
    assert list(admitted(result)) == ["of-x"], "a has nothing, but its cohort has all that it is due"


def test_a_modest_team_is_not_put_behind_one_that_already_has_more() -> None:
    teams = [Team(name="a", nominal_devices=0), Team(name="b", nominal_devices=0)]
    held = [running("r", "n1/0-2", team="b")]
    queue = [waiting(f"b{i}", "1", team="b", waited=61) for i in range(20)]
    assert next(iter(admitted(started(teams, held, *queue, waiting("only", "1", team="a"))))) == "only"


# ---- the books -----------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> list[Team]:
    names = [f"t{i}" for i in range(draw(st.integers(1, 7)))]
    limits = st.sampled_from([None, None, 0, 2, 5])
    return [
        Team(
            name=name,
            nominal_devices=draw(st.integers(0, 6)),
            borrow_devices=draw(limits),
            lend_devices=draw(limits),
            parent=draw(st.sampled_from([None, *names[:i]])),
            weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
        )
        for i, name in enumerate(names)
    ]


@settings(deadline=None)
@given(teams=trees(), uses=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=12))
def test_whatever_fits_into_the_room_breaks_no_limit_and_one_more_breaks_one(teams, uses) -> None:
    quota = Quota(cluster([node("n1", 16)], [], teams), {}, Policy(), 0.0)
    tree, any_request = quota.tree, GangRequest(devices_per_node=1)
    for number, devices in uses:
        who = number % len(teams)
        if devices <= quota.ceiling(who, any_request) - int(quota.used[who]):
            quota.use(who, devices)
        tallied = Quota(cluster([node("n1", 16)], [], teams), {}, Policy(), 0.0)
        for t, count in enumerate(quota.used.tolist()):
            tallied.tree.use(t, count)
        assert (tallied.tree.inside == tree.inside).all() and (tallied.tree.used == tree.used).all()
        assert (tree.inside[: tree.root] <= tree.limit[: tree.root]).all()
    for who in range(len(teams)):
        room = quota.ceiling(who, any_request) - int(quota.used[who])
        if 0 <= room < 1000:
            tree.use(who, room + 1)
            assert any(tree.inside[n] > tree.limit[n] for n in (*tree.path[who], tree.root))
            tree.use(who, -room - 1)


@settings(deadline=None)
@given(teams=trees(), uses=st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_nobody_who_keeps_to_what_he_owns_is_ever_over_for_anybody(teams, uses) -> None:
    quota = Quota(cluster([node("n1", 16)], [], teams), {}, Policy(), 0.0)
    for who, devices in zip(range(len(teams)), uses, strict=False):
        quota.use(who, devices)
    for who in range(len(teams)):
        over = quota.over(who)
        for other in range(len(teams)):
            if other != who and quota.used[other] <= quota.nominal[other]:
                assert over[other] <= 0


@pytest.mark.parametrize("wanted", [[8.0, 0.0, 0.0], [2.0, 2.0, 99.0]])
def test_fair_shares_of_children_are_part_of_their_parents(wanted: list[float]) -> None:
    teams = [Team(name="org", nominal_devices=0), child("a", 2), child("b", 1)]
    quota = Quota(cluster([node("n1", 8)], [], teams), {}, Policy(), 0.0)
    due = quota.tree.fair_shares(np.array(wanted))
    org = quota.tree.path[0][-1]
    assert due[org] <= 8 and all(due[child] <= due[org] + 1e-9 for child in quota.tree.children[org])


# ---- victims that cannot help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_the_limit", ["org", "a"])
def test_a_team_at_the_limit_of_its_own_branch_looks_for_no_victims_in_another(
    at_the_limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[object] = []
    solve = Search._solve
    monkeypatch.setattr(Search, "_solve", lambda self, domain: (searched.append(domain), solve(self, domain))[1])
    borrow = {"org": None, "a": None, at_the_limit: 0}
    teams = [
        Team(name="org", nominal_devices=0, borrow_devices=borrow["org"]),
        child("a", 2, borrow_devices=borrow["a"]),
        Team(name="x", nominal_devices=2),
    ]
    own = running("own", "n1/0-1", team="a", priority=50)
    others = [running(f"x{n}", f"n1/{n}", team="x") for n in range(2, 8)]
    result = started(teams, [own, *others], waiting("g", "2", team="a", priority=50))
    assert why(result) == {"g": "waits-for-quota"} and evicted(result) == {}
    assert searched == [], "whoever leaves x, a stays at its branch's limit"
    lower = running("own", "n1/0-1", team="a", priority=10)
    result = started(teams, [lower, *others], waiting("g", "2", team="a", priority=50))
    assert evicted(result) == {"g": ["own"]} and searched, "its own is another matter"
