"""Who is tried first, and that nobody waits for ever."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Policy
from tests.workers.scheduling.world import NOW, POLICY, admitted, cluster, decide, node, running, team, waiting, why

ONE = [node("n1", 1)]


def first(*queue, snapshot=None, **more):
    return next(iter(admitted(decide(snapshot or cluster(ONE), *queue, **more))))


def test_of_equals_the_first_submitted_starts_first():
    assert first(waiting("late", waited=10), waiting("early", waited=20)) == "early"


def test_base_priority_comes_before_a_short_wait():
    assert first(waiting("old", waited=600), waiting("urgent", waited=1, priority=50)) == "urgent"


def test_waiting_lifts_a_gang_above_a_slightly_higher_priority():
    assert first(waiting("old", waited=3.9 * 3600), waiting("new", waited=1, priority=20)) == "old"


def test_a_team_that_uses_less_than_its_share_goes_before_one_that_uses_more():
    snapshot = cluster([node("n1", 4)], [running("r", "n1/0-2", team="a")], [team("a", 2), team("b", 2)])
    assert first(waiting("of-a", team="a", waited=61), waiting("of-b", team="b"), snapshot=snapshot) == "of-b"


def test_weight_decides_between_teams_that_own_nothing_13826():
    teams = [team("a", 0, weight=1), team("b", 0, weight=3)]
    snapshot = cluster([node("n1", 9)], [running("ra", "n1/0-3", team="a"), running("rb", "n1/4-7", team="b")], teams)
    assert first(waiting("of-a", team="a", waited=61), waiting("of-b", team="b"), snapshot=snapshot) == "of-b"


def test_past_usage_counts_against_a_team():
    snapshot = cluster(ONE, teams=[team("a", 1), team("b", 1)], usage={"a": 900.0, "b": 100.0})
    assert first(waiting("of-a", team="a", waited=61), waiting("of-b", team="b"), snapshot=snapshot) == "of-b"


def test_evicted_gangs_keep_the_age_of_their_first_submission():
    assert first(waiting("evicted", waited=7200, evictions=3), waiting("new", waited=60)) == "evicted"


def test_a_gang_in_the_future_is_not_mentioned():
    result = decide(cluster(ONE), waiting("tomorrow", submitted_at=NOW - 5, eligible_at=NOW + 60))
    assert result.admits == () and result.holds == ()


def test_age_counts_from_the_scheduled_time_not_from_submission():
    early = waiting("scheduled-late", submitted_at=NOW - 9000, eligible_at=NOW - 1)
    assert first(early, waiting("now", waited=300)) == "now"


def test_t7_a_steady_stream_of_small_young_gangs_does_not_overtake_a_large_one_past_max_age():
    big = waiting("big", "4", waited=POLICY.max_age_seconds + 1)
    stream = [waiting(f"s{i}", "1", waited=5, priority=100) for i in range(8)]
    assert first(*stream, big, snapshot=cluster([node("n1", 4)])) == "big"


def test_t7_past_max_age_a_gang_still_evicts_nobody_of_its_own_priority():
    snapshot = cluster(ONE, [running("r", "n1/0")])
    result = decide(snapshot, waiting("ancient", waited=100 * POLICY.max_age_seconds))
    assert result.admits == () and why(result) == {"ancient": "waits-for-capacity"}


def test_past_max_age_first_submit_time_alone_counts_whatever_the_priority():
    age = POLICY.max_age_seconds
    queue = [waiting("older", waited=age + 100), waiting("younger", team="b", waited=age + 1, priority=100)]
    assert first(*queue) == "older"


def test_only_the_oldest_gang_of_a_team_leaves_the_order():
    age = POLICY.max_age_seconds
    queue = [waiting("x1", waited=age + 100), waiting("x2", waited=age + 90), waiting("y", team="b", priority=100)]
    result = decide(cluster([node("n1", 2)]), *queue)
    assert [admit.run_id for admit in result.admits] == ["x1", "x2"]  # x2 became the oldest once x1 was placed
    held = decide(cluster(ONE, teams=[team("a", 0, borrow=9), team("b", 9)]), *queue, policy=Policy(max_admissions=1))
    assert [admit.run_id for admit in held.admits] == ["x1"]


def first_beside(*held, policy=POLICY):
    """Who takes the four devices that are left beside these: the old large one or the new small one."""
    age = POLICY.max_age_seconds
    queue = [waiting("large", "4", waited=2 * age), waiting("small", "1", waited=60)]
    return first(*queue, snapshot=cluster([node("n1", 8), node("n2", 4)], held), policy=policy)


def test_of_equally_old_ones_the_small_goes_before_the_large():
    snapshot = cluster([node("n1", 4)])
    assert first(waiting("large", "4", waited=61), waiting("small", "1"), snapshot=snapshot) == "small"


def came(run_id, *devices, before, **more):
    """A gang on these devices that was submitted so many seconds before now, and started a moment ago."""
    return running(run_id, *devices, submitted_at=NOW - before, started_at=NOW - 60, **more)


def test_a_gang_that_waits_for_its_elders_is_not_old_yet():
    elder = came("elder", "n1/0-7", before=3 * POLICY.max_age_seconds)
    assert first_beside(elder) == "small"  # they hold 8 of 12, and 60 % are 7.2
    assert first_beside(elder, policy=Policy(overtaking=0)) == "large"


def test_a_gang_is_old_once_its_elders_hold_no_more_than_their_part():
    age = POLICY.max_age_seconds
    elder, younger = came("elder", "n1/0-6", before=3 * age), came("younger", "n1/7", before=age)
    assert first_beside(elder, younger) == "large"


def test_a_service_never_ends_so_nobody_waits_for_it_though_it_came_before():
    service = came("service", "n1/0-7", before=3 * POLICY.max_age_seconds, kind=Kind.INFERENCE)
    assert first_beside(service) == "large"


def test_who_is_leaving_is_waited_for_until_it_is_gone_and_who_starts_now_is_not_yet():
    age = POLICY.max_age_seconds
    assert first_beside(came("elder", "n1/0-7", before=3 * age, evicting=True)) == "small"
    assert first_beside(running("elder", "n1/0-7", submitted_at=NOW - 3 * age, started_at=NOW)) == "large"


def test_a_gang_is_overtaken_in_its_own_resource_pool_whoever_holds_devices_of_others():
    age = POLICY.max_age_seconds
    nodes = [node("h", 5, model="H100"), node("a", 8, model="A100")]
    held = [
        came("elder", "a/0-7", before=3 * age, gpu_model="A100"),
        came("younger", "h/0", before=age, gpu_model="H100"),
    ]
    queue = [
        waiting("large", "4", waited=2 * age, gpu_model="H100"),
        waiting("small", "1", waited=60, gpu_model="H100"),
    ]
    assert first(*queue, snapshot=cluster(nodes, held)) == "large"


def test_every_factor_of_the_rank_is_shown_and_they_sum_to_it():
    snapshot = cluster(ONE, [running("r", "n1/0", priority=50)], [team("a", 1), team("b", 1)])
    hold = decide(snapshot, waiting("g", waited=POLICY.max_age_seconds / 2, priority=50)).holds[0]
    assert hold.factors == {
        "priority": pytest.approx(POLICY.w_priority * 0.5),
        "age": pytest.approx(POLICY.w_age * 0.5),
        "share": pytest.approx(0.0),
        "gap": pytest.approx(0.0),
        "depth": pytest.approx(POLICY.w_depth),
        "small": pytest.approx(POLICY.w_small),
    }


def test_t1_a_head_that_waits_for_one_model_does_not_block_gangs_for_another():
    snapshot = cluster([node("h", 2), node("a", 2, model="A100")], [running("r", "h/0-1")])
    result = decide(snapshot, waiting("head", "2", gpu_model="H100"), waiting("next", "2", gpu_model="A100", waited=1))
    assert admitted(result) == {"next": ["a"]}
    assert [(shadow.run_id, shadow.resource_pool) for shadow in result.shadows] == [("head", "H100")]


def test_t2_a_head_over_its_quota_holds_nothing_that_others_could_use():
    snapshot = cluster([node("n1", 4)], [running("r", "n1/0-1")], [team("a", 2, borrow=1), team("b", 2)])
    result = decide(snapshot, waiting("head", "2", waited=500), waiting("other", "2", team="b", waited=1))
    assert admitted(result) == {"other": ["n1"]}
    assert why(result) == {"head": "waits-for-quota"} and result.shadows == ()


def test_weights_that_could_starve_somebody_are_refused():
    with pytest.raises(InvalidRequest, match=r"w_age is 1, less than w_share \+ w_gap \+ w_depth \+ w_small = 1.75"):
        Policy(w_age=1, w_share=1, w_gap=0.25, w_depth=0.25, w_small=0.25)


def test_within_a_priority_class_a_full_age_outweighs_every_other_factor_together():
    snapshot = cluster(
        [node("n1", 4)], [running("r", "n1/0-2", team="a")], [team("a", 0), team("b", 4)], usage={"a": 1.0}
    )
    crowd = [waiting(f"b{i}", "1", team="b", waited=0) for i in range(20)]
    old = waiting("old", "1", team="a", waited=POLICY.max_age_seconds - 1)
    assert first(old, *crowd, snapshot=snapshot) == "old"


def test_the_order_of_the_queue_and_of_the_nodes_does_not_matter():
    nodes = [node(f"n{i}", 4) for i in range(3)]
    queue = [waiting(f"g{i}", str(1 + i % 4), waited=60 + i, priority=i % 3) for i in range(9)]
    assert decide(cluster(nodes), *queue) == decide(cluster(nodes[::-1]), *queue[::-1])
