"""What users of other queues complain about, each by its symptom: starvation, head of line, quota, fair share, reclaim.

The rows are those of public bug reports: T1 kueue#8309, T2 kueue#4809, T3 kueue#9715, T4 kueue PR#7157, T7 KAI#1970,
T8 KAI#1969, T9 flux-sched#1210, T13 volcano#377, T20 armada PR#5073, T31 KAI#500,
T38 kueue#1654, T41 k8s#140436, T42 ray#19131, T43 volcano#1860, T57 kueue PR#11720, T60 volcano#3976.
"""

from dataclasses import replace

import pytest

from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, plan
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
    texts,
    waiting,
    why,
)

HOUR = 3600.0


def test_t1_a_head_that_waits_for_one_gpu_model_blocks_jobs_for_another() -> None:
    snapshot = cluster([node("h", 2), node("a", 2, model="A100")], [running("r", "h/0-1")])
    queue = [waiting("head", "2", gpu_model="H100", waited=9000)]
    queue += [waiting(f"j{i}", "1", gpu_model="A100", waited=1) for i in range(2)]
    assert sorted(admitted(decide(snapshot, *queue))) == ["j0", "j1"]


def test_t2_an_unfitting_head_keeps_others_from_the_quota_that_its_team_leaves_idle() -> None:
    teams = [team("a", 6, borrow=0), team("b", 2)]
    snapshot = cluster([node("n1", 4), node("n2", 4)], [running("r", "n1/0", team="a")], teams)
    head = waiting("head", "2x3", team="a", waited=9000, max_runtime_seconds=HOUR)
    result = decide(snapshot, head, waiting("borrows", "4", team="b", waited=1))
    assert why(result)["head"] == "waits-for-quota" and result.shadows == ()
    assert admitted(result) == {"borrows": ["n2"]}


@pytest.mark.slow
def test_t3_ten_thousand_jobs_that_do_not_fit_keep_one_that_does_from_being_reached() -> None:
    snapshot = cluster([node("n1", 8)], [running("r", "n1/0-6", preemptible=False)])
    crowd = [waiting(f"big{i:05}", str(2 + i % 7), waited=5000 - i / 10) for i in range(10_000)]
    result = decide(snapshot, *crowd, waiting("fits", "1", waited=1, max_runtime_seconds=60))
    assert admitted(result) == {"fits": ["n1"]}


def test_t4_a_job_that_was_held_slips_into_the_room_that_a_preemptors_victims_leave() -> None:
    snapshot = cluster([node("n1", 4)], [running("victim", "n1/0-3")], [team("a", 4), team("b", 4)])
    queue = [waiting("urgent", "4", priority=50), waiting("sly", "4", team="b", waited=1)]
    first = decide(snapshot, *queue)
    assert evicted(first) == {"urgent": ["victim"]}
    after = carry_out(snapshot, first, queue)
    gone = after.apply(finished=["victim"])
    for moment in (after, gone):
        result = plan(moment, [queue[1]], POLICY, NOW + 1)
        assert admitted(result) == {}


def test_t7_a_steady_stream_of_short_jobs_starves_one_large_job() -> None:
    snapshot = cluster([node("n1", 4)])
    now, started, ran = NOW, None, {}
    big = waiting("big", "4", waited=0)
    for cycle in range(200):
        done = [run_id for run_id, since in ran.items() if now - since >= 600]
        snapshot = snapshot.apply(finished=done)
        for run_id in done:
            del ran[run_id]
        stream = [
            waiting(f"s{cycle}-{i}", "1", submitted_at=now, eligible_at=now, max_runtime_seconds=600) for i in range(4)
        ]
        queue = [big, *stream]
        result = plan(snapshot, queue, POLICY, now)
        snapshot = carry_out(snapshot, result, queue, now)
        ran |= {admit.run_id: now for admit in result.admits}
        if "big" in admitted(result):
            started = now
            break
        now += 60
    assert started is not None and started - NOW <= 1200, "the shadow lets nobody pass that would end too late"


def test_t7_waiting_for_ever_makes_nobody_unpreemptable_nor_a_preemptor() -> None:
    snapshot = cluster([node("n1", 1)], [running("r", "n1/0", priority=1)])
    assert evicted(decide(snapshot, waiting("old", waited=99 * POLICY.max_age_seconds, priority=1))) == {}
    aged = cluster([node("n1", 1)], [running("aged", "n1/0", submitted_at=0.0)])
    assert evicted(decide(aged, waiting("urgent", priority=1))) == {"urgent": ["aged"]}


def test_t8_freed_nodes_always_go_to_small_jobs_because_the_big_one_has_no_reservation() -> None:
    snapshot = cluster(
        [node("n1", 4), node("n2", 4)],
        [running("one", "n1/0-3", max_runtime_seconds=2 * HOUR, ran=HOUR), running("two", "n2/0-3", preemptible=False)],
    )
    result = decide(snapshot, waiting("big", "4", waited=500))
    [shadow] = result.shadows
    assert (shadow.run_id, shadow.start) == ("big", pytest.approx(NOW + HOUR))


def test_t9_jobs_that_can_never_run_now_use_up_the_look_ahead() -> None:
    snapshot = cluster([node("n1", 4)], [running("r", "n1/0-1", preemptible=False)])
    hopeless = [waiting(f"never{i}", "9", waited=9000) for i in range(500)]
    blocked = [waiting(f"blocked{i}", "3", waited=5000) for i in range(500)]
    result = decide(snapshot, *hopeless, *blocked, waiting("runnable", "2", waited=1, max_runtime_seconds=60))
    assert list(admitted(result)) == ["runnable"]
    etas = [hold.run_id for hold in result.holds if hold.eta is not None]
    assert len(etas) == POLICY.eta_positions and not any(run_id.startswith("never") for run_id in etas)


def test_t13_two_queues_that_both_borrow_evict_each_other() -> None:
    teams = [team("a", 1), team("b", 1), team("c", 2)]
    snapshot = cluster([node("n1", 4)], [running("ra", "n1/0-1", team="a"), running("rb", "n1/2-3", team="b")], teams)
    queue = [waiting("ga", "2", team="a"), waiting("gb", "2", team="b")]
    assert evicted(decide(snapshot, *queue)) == {}, "each would borrow itself, so neither may reclaim"


def test_t13_a_queue_that_was_evicted_has_a_share_of_nothing_and_becomes_first_again() -> None:
    teams = [team("a", 2), team("b", 2)]
    snapshot = cluster([node("n1", 4)], [running("ra", "n1/0-3", team="a")], teams)
    queue = [waiting("gb", "2", team="b")]
    first = decide(snapshot, *queue)
    assert evicted(first) == {"gb": ["ra"]}
    back = waiting("ra", "4", evictions=1, evicted_for=("gb",), waited=HOUR)
    after = carry_out(snapshot, first, queue).apply(finished=["ra"])
    settled = after.apply(updated=[replace(g, promised=False, started_at=NOW - HOUR) for g in after.gangs()])
    assert evicted(plan(settled, [back], POLICY, NOW + HOUR)) == {}


@pytest.mark.parametrize("cohort", [None, "org"])
def test_t31_a_gang_larger_than_its_queues_limit_is_half_placed(cohort: str | None) -> None:
    teams = [Team(name="a", nominal_devices=2, borrow_devices=1, parent=cohort), team("org", 0)]
    result = decide(cluster([node("n1", 8)], teams=teams), waiting("g", "4"))
    assert result.admits == () and why(result) == {"g": "over-team-limit"}
    assert texts(result)["g"].startswith("needs 4 GPUs, but team a may hold at most 3 (2 of its own + 1 borrowed)")


def test_t31_a_gang_larger_than_the_limit_of_a_queue_above_is_half_placed() -> None:
    teams = [Team(name="a", nominal_devices=0, parent="org"), Team(name="org", nominal_devices=2, borrow_devices=1)]
    result = decide(cluster([node("n1", 8)], teams=teams), waiting("g", "4"))
    assert result.admits == () and why(result) == {"g": "over-team-limit"}


def test_a_gang_that_leaves_counts_against_its_team_no_more() -> None:
    teams = [team("a", 2, borrow=0)]
    leaving = running("r", "n1/0-1", evicting=True)
    result = decide(cluster([node("n1", 4)], [leaving], teams), waiting("g", "2"))
    assert admitted(result) == {"g": ["n1"]}


def test_t38_after_a_restart_other_jobs_are_admitted_than_before_it() -> None:
    teams = [team("a", 2, borrow=2), team("b", 4)]
    nodes = [node("n1", 4), node("n2", 4)]
    snapshot = cluster(nodes, [], teams)
    queue = [waiting(f"g{i}", "2", team="ab"[i % 2], waited=100 - i) for i in range(8)]
    before = decide(snapshot, *queue)
    grown = carry_out(snapshot, before, queue)
    rebuilt = cluster(nodes, list(grown.gangs()), teams, shadows=grown.shadows)
    rest = [gang for gang in queue if gang.run_id not in admitted(before)]
    assert plan(rebuilt, rest, POLICY, NOW + 5) == plan(grown, rest, POLICY, NOW + 5)


def test_t41_a_trial_that_came_to_nothing_leaves_quota_in_use() -> None:
    teams = [team("a", 4, borrow=0)]
    snapshot = cluster([node("n1", 2), node("n2", 2)], [], teams)
    result = decide(snapshot, waiting("cannot", "2x3", waited=900), waiting("can", "2x2", waited=1))
    assert list(admitted(result)) == ["can"], "the first held nothing, so the whole quota is there for the second"
    assert decide(snapshot, waiting("can", "2x2")).admits == decide(snapshot, waiting("can", "2x2")).admits


def test_t42_a_gang_that_leaves_is_counted_out_twice_and_usage_falls_below_zero() -> None:
    teams = [team("a", 1), team("b", 1), team("c", 2)]
    held = [running("ra", "n1/0-3", team="a", evicting=True)]
    result = decide(cluster([node("n1", 4)], held, teams), waiting("g", "2", team="c"), waiting("h", "2", team="b"))
    assert sorted(admitted(result)) == ["g", "h"], "a leaving gang is counted out once, not twice"


def test_t43_only_the_leaf_is_checked_and_a_queue_above_exceeds_its_limit() -> None:
    teams = [Team(name="org", nominal_devices=0, borrow_devices=3)]
    teams += [Team(name=name, nominal_devices=0, parent="org") for name in "ab"]
    queue = [waiting(f"{name}{i}", "1", team=name) for name in "ab" for i in range(4)]
    result = decide(cluster([node("n1", 8)], teams=teams), *queue)
    assert len(result.admits) == 3
    assert set(why(result).values()) == {"waits-for-quota"}


def test_t57_everything_that_waits_is_just_pending() -> None:
    teams = [team("a", 2, borrow=0), team("b", 2, highest=10)]
    snapshot = cluster([node("n1", 4)], [running("r", "n1/0-1", team="a", preemptible=False)], teams)
    result = decide(
        snapshot,
        waiting("stranger", team="zzz"),
        waiting("giant", "99", team="b"),
        waiting("proud", team="b", priority=11),
        waiting("quota", "1"),
        waiting("capacity", "4", team="b", preemptible=True),
    )
    assert why(result) == {
        "stranger": "unknown-team",
        "giant": "never-fits",
        "proud": "invalid-request",
        "quota": "waits-for-quota",
        "capacity": "waits-for-capacity",
    }


def test_a_burst_of_submissions_all_sees_the_share_of_before_the_burst() -> None:
    teams = [team("a", 0), team("b", 0)]
    fair = Policy(history_weight=1.0, usage_half_life_seconds=HOUR, charge_ahead_seconds=600.0)
    queue = [waiting(f"a{i}", "1", team="a", waited=61) for i in range(8)]
    queue += [waiting(f"b{i}", "1", team="b", waited=60) for i in range(8)]
    started = list(admitted(decide(cluster([node("n1", 8)], teams=teams), *queue, policy=fair)))
    assert sum(run_id.startswith("b") for run_id in started) == 4, started


def test_what_a_team_used_while_nobody_else_wanted_it_is_cheap() -> None:
    teams = [team("a", 0), team("b", 0)]
    lately = {"a": 100 * POLICY.usage_half_life_seconds, "b": 0.0}
    queue = [waiting("of-a", team="a", waited=POLICY.max_age_seconds / 2), waiting("of-b", team="b")]
    snapshot = cluster([node("n1", 1)], teams=teams, usage=lately)
    assert list(admitted(decide(snapshot, *queue))) == ["of-a"], "a share is one factor beside the wait, and bounded"
