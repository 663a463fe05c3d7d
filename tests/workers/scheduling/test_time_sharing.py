"""Levels by attained device-seconds: short gangs overtake long ones, and who waits too long is lifted once."""

from dataclasses import replace

from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Policy
from dsec_workers.scheduling.time_sharing import attained, level_of, lift_due
from tests.workers.scheduling.world import NOW, admitted, cluster, decide, evicted, node, running, team, waiting

SHARED = Policy(time_sharing=True, level_device_seconds=(1000.0, 10_000.0), lift_factor=4.0)
ONE = [node("n1", 4)]


def test_a_level_is_counted_from_device_seconds_over_all_attempts():
    gang = running("g", "n1/0-3", ran=200)
    assert attained(gang, NOW) == 800 and level_of(gang, SHARED, NOW) == 0
    assert level_of(gang, SHARED, NOW + 50) == 1
    assert level_of(replace(gang, attained_seconds=9200.0), SHARED, NOW) == 2
    assert level_of(gang, Policy(), NOW + 5000) == 0


def test_a_fresh_gang_evicts_one_of_its_own_priority_that_has_had_more_and_not_while_the_policy_is_off():
    snapshot = cluster(ONE, [running("long", "n1/0-3", ran=2000)])
    assert evicted(decide(snapshot, waiting("new", "4"), policy=SHARED)) == {"new": ["long"]}
    assert decide(snapshot, waiting("new", "4")).admits == ()


def test_a_level_gives_no_right_over_a_higher_base_priority_nor_over_what_does_not_share_its_time():
    for more in ({"priority": 1}, {"kind": Kind.BATCH}, {"kind": Kind.INFERENCE}, {"preemptible": False}):
        snapshot = cluster(ONE, [running("long", "n1/0-3", ran=2000, **more)])
        assert decide(snapshot, waiting("new", "4"), policy=SHARED).admits == ()


def test_a_level_gives_no_right_within_the_minimum_run():
    fresh = running("long", "n1/0-3", ran=10, attained_seconds=5000.0, first_commit_at=None, last_commit_at=None)
    assert decide(cluster(ONE, [fresh]), waiting("new", "4"), policy=SHARED).admits == ()


def test_a_borrower_takes_by_level_only_from_borrowers():
    teams = [team("a", 0), team("b", 4)]
    snapshot = cluster(ONE, [running("long", "n1/0-3", ran=2000, team="b")], teams)
    assert decide(snapshot, waiting("new", "4"), policy=SHARED).admits == ()
    snapshot = cluster(ONE, [running("long", "n1/0-3", ran=2000, team="b")], [team("a", 0), team("b", 0)])
    assert evicted(decide(snapshot, waiting("new", "4"), policy=SHARED)) == {"new": ["long"]}


def test_an_equal_level_evicts_nobody_so_that_two_change_places_once_per_threshold():
    gangs = {"x": 0.0, "y": 0.0}
    holder, swaps, since, started = "x", [], {"x": 0.0, "y": 0.0}, 0.0
    evictors = {"x": (), "y": ()}
    for step in range(1, 80):
        now = NOW + step * 400.0
        other = "y" if holder == "x" else "x"
        run = replace(
            running(holder, "n1/0-3"),
            started_at=NOW + started, attained_seconds=gangs[holder], first_commit_at=NOW + started, last_commit_at=now,
        )  # fmt: skip
        queued = waiting(
            other, "4", attained_seconds=gangs[other], evicted_for=evictors[other], lifted=True,
            submitted_at=NOW, eligible_at=NOW, waiting_since=NOW + since[other],
        )  # fmt: skip
        result = decide(cluster(ONE, [run]), queued, policy=SHARED, now=now)
        if evicted(result):
            gangs[holder] += 4 * (now - NOW - started)
            evictors[holder] = (*evictors[holder], other)
            holder, started = other, now - NOW
            swaps.append(step)
    assert 2 <= len(swaps) <= 2 * len(SHARED.level_device_seconds)


def test_who_has_waited_many_times_what_it_has_run_is_lifted_once():
    queued = waiting("old", "4", attained_seconds=4000.0, waiting_since=NOW - 4000)
    assert lift_due(queued, SHARED, NOW) and level_of(queued, SHARED, NOW) == 0
    assert not lift_due(queued, SHARED, NOW - 1)
    assert (
        not lift_due(replace(queued, lifted=True), SHARED, NOW)
        and level_of(replace(queued, lifted=True), SHARED, NOW) == 1
    )
    snapshot = cluster(ONE, [running("long", "n1/0-3", ran=2000)])
    result = decide(snapshot, queued, policy=SHARED)
    assert evicted(result) == {"old": ["long"]} and result.lifted == ("old",)
    result = decide(snapshot, replace(queued, lifted=True), policy=SHARED)
    assert (
        evicted(result) == {"old": ["long"]} if level_of(snapshot.running[0], SHARED, NOW) > 1 else result.admits == ()
    )


def test_smaller_levels_come_first_in_line_and_the_rank_says_so():
    queue = [
        waiting("had-much", "4", waited=9000, attained_seconds=20_000.0, waiting_since=NOW - 60),
        waiting("new", "4", waited=60),
    ]
    result = decide(cluster(ONE), *queue, policy=SHARED)
    assert list(admitted(result)) == ["new"]
    (hold,) = result.holds
    assert hold.factors["level"] == -2 * SHARED.w_level
    assert list(admitted(decide(cluster(ONE), *queue))) == ["had-much"]
