"""The head of line's reservation on future capacity: what it keeps, who may pass, and that it never slips for them."""

import pytest

from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Shadow
from dsec_workers.scheduling.shadow import expected_runtime
from tests.workers.scheduling.world import (
    NOW,
    POLICY,
    admitted,
    carry_out,
    cluster,
    decide,
    evicted,
    node,
    request,
    running,
    team,
    texts,
    waiting,
    why,
)

TWO = [node("n1", 4), node("n2", 4)]
HOUR = 3600.0


def busy(until=HOUR, **more):
    """n1 is held until NOW + `until`; n2 is free."""
    return running("r1", "n1/0-3", ran=HOUR, max_runtime_seconds=HOUR + until, preemptible=False, **more)


HEAD = waiting("head", "2x4", waited=3 * HOUR)


def test_t8_a_large_gang_gets_a_reservation_on_future_capacity_although_no_node_is_free():
    held = [busy(), running("r2", "n2/0-3", ran=HOUR, max_runtime_seconds=3 * HOUR, preemptible=False)]
    result = decide(cluster(TWO, held), HEAD)
    (shadow,) = result.shadows
    assert (shadow.run_id, shadow.start, len(shadow.devices)) == ("head", NOW + 2 * HOUR, 8)
    assert result.holds[0].eta == NOW + 2 * HOUR and result.holds[0].position == 1


@pytest.mark.parametrize(
    ("passer", "passes"),
    [
        pytest.param(
            {"max_runtime_seconds": HOUR, "preemptible": False}, True, id="one that must end before the start"
        ),
        pytest.param(
            {"max_runtime_seconds": HOUR + 1, "preemptible": False}, False, id="not one that may end after it"
        ),
        pytest.param({"preemptible": False}, False, id="not one without a limit that cannot be evicted"),
        pytest.param({"kind": Kind.INFERENCE}, False, id="not inference"),
        pytest.param({}, True, id="one that can be evicted, on condition"),
        pytest.param({"checkpoint_seconds": 600.0, "restart_seconds": 600.0}, False, id="unless it would hardly run"),
    ],
)
def test_t8_who_may_pass_the_head_of_line(passer, passes):
    result = decide(cluster(TWO, [busy()]), HEAD, waiting("passer", "4", waited=1, **passer))
    assert list(admitted(result)) == (["passer"] if passes else [])
    assert (why(result).get("passer")) == (None if passes else "waits-for-capacity")


def test_a_passer_without_a_contract_is_tagged_with_the_start_it_must_not_delay():
    passer = waiting("passer", "4", waited=1)
    result = decide(cluster(TWO, [busy()]), HEAD, passer)
    assert result.conditional == {"passer": NOW + HOUR}
    contracted = waiting("passer", "4", waited=1, max_runtime_seconds=60)
    assert decide(cluster(TWO, [busy()]), HEAD, contracted).conditional == {}


def test_whoever_uses_what_the_shadow_does_not_need_passes_for_good():
    result = decide(cluster([*TWO, node("n3", 4)], [busy(), running("r3", "n3/0", preemptible=False)]), HEAD,
                    waiting("passer", "3", waited=1, preemptible=False))  # fmt: skip
    assert admitted(result) == {"passer": ["n3"]} and result.conditional == {}


def test_a_blocked_passer_is_told_for_whom_the_room_is_kept():
    result = decide(cluster(TWO, [busy()]), HEAD, waiting("p", "4", waited=1, preemptible=False))
    assert texts(result)["p"] == (
        "needs 4 GPUs on one node; 0 of 4 free, the others are kept for the first in line, which starts in about 60 min"
    )


def test_t8_the_start_is_never_moved_later_by_a_passer_and_is_kept_with_exact_limits():
    snapshot = cluster(TWO, [busy()])
    passers = [waiting(f"p{i}", "1", waited=1, max_runtime_seconds=900.0 * (1 + i % 4)) for i in range(12)]
    first = decide(snapshot, HEAD, *passers)
    start = first.shadows[0].start
    snapshot, now, left = carry_out(snapshot, first, passers), NOW, {p.run_id: p for p in passers}
    left = {name: gang for name, gang in left.items() if name not in admitted(first)}
    while True:
        now += 300.0
        ended = [g.run_id for g in snapshot.gangs() if g.started_at + g.request.max_runtime_seconds <= now]
        snapshot = snapshot.apply(finished=ended)
        result = decide(snapshot, HEAD, *left.values(), now=now)
        left = {name: gang for name, gang in left.items() if name not in admitted(result)}
        if "head" in admitted(result):
            break
        assert [shadow.start for shadow in result.shadows] == [start]
        snapshot = carry_out(snapshot, result, passers, now)
    assert now <= start


def test_the_shadow_is_sticky_a_newcomer_that_ranks_higher_does_not_take_it():
    snapshot = cluster(TWO, [busy()])
    shadows = decide(snapshot, HEAD).shadows
    result = decide(snapshot.apply(shadows=shadows), HEAD, waiting("older", "2x4", waited=3.5 * HOUR))
    assert result.shadows == shadows
    assert {hold.run_id: hold.position for hold in result.holds} == {"head": 1, "older": 2}


def test_a_gang_with_a_right_to_evict_the_holder_takes_its_room_and_the_shadow_moves():
    snapshot = cluster(TWO, [busy()])
    snapshot = snapshot.apply(shadows=decide(snapshot, HEAD).shadows)
    result = decide(snapshot, HEAD, waiting("urgent", "4", priority=90, waited=1, max_runtime_seconds=2 * HOUR))
    assert admitted(result) == {"urgent": ["n2"]} and result.conditional == {}
    assert result.shadows[0].start == NOW + 2 * HOUR


def test_the_shadow_is_lost_by_cancellation_and_by_starting():
    snapshot = cluster(TWO, [busy()])
    snapshot = snapshot.apply(shadows=decide(snapshot, HEAD).shadows)
    assert decide(snapshot).shadows == ()
    free = snapshot.apply(finished=["r1"])
    result = decide(free, HEAD)
    assert list(admitted(result)) == ["head"] and result.shadows == ()


def test_an_earlier_place_is_taken_when_somebody_leaves_early():
    late = running("r3", "n3/0-3", ran=1, max_runtime_seconds=9 * HOUR, preemptible=False)
    snapshot = cluster([*TWO, node("n3", 4)], [busy(), late])
    devices = tuple(f"n{i}/{j}" for i in (2, 3) for j in range(4))
    shadow = Shadow(run_id="head", resource_pool="every GPU", start=NOW + 9 * HOUR, devices=devices, since=NOW - 60)
    snapshot = snapshot.apply(shadows=[shadow])
    (shadow,) = decide(snapshot, HEAD).shadows
    assert shadow.start == NOW + HOUR and shadow.since == NOW - 60


def test_a_shadow_whose_device_broke_looks_for_another_place():
    snapshot = cluster([*TWO, node("n3", 4)], [busy()])
    shadow = Shadow(run_id="head", resource_pool="every GPU", start=NOW + 60, since=NOW,
                    devices=tuple(f"n{i}/{j}" for i in (1, 9) for j in range(4)))  # fmt: skip
    result = decide(snapshot.apply(shadows=[shadow]), waiting("head", "3x4"))
    assert result.shadows[0].start == NOW + HOUR
    assert all(uuid.split("/")[0] in {"n1", "n2", "n3"} for uuid in result.shadows[0].devices)


def test_the_holder_evicts_conditional_passers_when_their_time_has_come_and_not_before():
    gone_at = NOW + HOUR
    passer = running("passer", "n2/0-3", ran=60, priority=50, first_commit_at=None, conditional_until=gone_at,
                     checkpoint_seconds=10.0, grace_seconds=30.0)  # fmt: skip
    shadow = Shadow(run_id="head", resource_pool="every GPU", start=gone_at, since=NOW,
                    devices=tuple(f"n{i}/{j}" for i in (1, 2) for j in range(4)))  # fmt: skip
    snapshot = cluster(TWO, [passer], shadows=[shadow])
    assert decide(snapshot, HEAD, now=gone_at - 41).admits == ()
    assert evicted(decide(snapshot, HEAD, now=gone_at - 40)) == {"head": ["passer"]}
    assert decide(snapshot, waiting("other", "2x4"), now=gone_at).admits == ()


def test_each_resource_pool_has_its_own_head():
    nodes = [node("h", 4), node("a", 4, model="A100")]
    held = [running("rh", "h/0", preemptible=False), running("ra", "a/0", preemptible=False)]
    result = decide(
        cluster(nodes, held), *[waiting(f"{m}{i}", "4", gpu_model=m) for m in ("H100", "A100") for i in (1, 2)]
    )
    assert {(s.resource_pool, s.run_id) for s in result.shadows} == {("A100", "A1001"), ("H100", "H1001")}
    assert sorted(hold.position for hold in result.holds) == [1, 1, 2, 2]


def test_a_head_that_will_never_be_free_by_forecast_leaves_the_shadow_to_the_next():
    nodes = [node("n1", 4), node("n2", 2)]
    held = [running("svc", "n1/0-2", kind=Kind.INFERENCE), running("r", "n2/0-1", preemptible=False)]
    result = decide(cluster(nodes, held), waiting("never", "4", waited=900), waiting("next", "2", preemptible=False))
    assert [shadow.run_id for shadow in result.shadows] == ["next"]
    assert {hold.run_id: hold.eta is None for hold in result.holds} == {"never": True, "next": False}


def test_the_first_twenty_of_a_pool_get_an_estimate_and_the_others_a_place():
    held = [running("r", "n1/0-3", ran=60, max_runtime_seconds=660, preemptible=False)]
    queue = [waiting(f"w{i:02}", "4", waited=100 - i, max_runtime_seconds=600) for i in range(30)]
    holds = decide(cluster([node("n1", 4)], held), *queue).holds
    assert [hold.position for hold in holds] == list(range(1, 31))
    assert [hold.eta for hold in holds[:20]] == [NOW + 600.0 * (i + 1) for i in range(20)]
    assert all(hold.eta is None for hold in holds[20:])


def test_an_estimate_grows_by_doubling_when_a_gang_outlives_it():
    default = POLICY.default_runtime_seconds
    elapsed = (0, default - 1, default, 3 * default)
    assert [expected_runtime(request("1"), POLICY, seconds) / default for seconds in elapsed] == [1, 1, 2, 4]


def test_a_gang_over_its_quota_casts_no_shadow():
    snapshot = cluster(TWO, [busy(team="a")], [team("a", 4, borrow=4), team("b", 4)])
    result = decide(snapshot, waiting("over", "2x4", waited=900), waiting("next", "1x4", team="b", waited=1))
    assert list(admitted(result)) == ["next"] and result.shadows == ()


def test_runs_like_it_that_have_ended_say_when_a_gang_without_max_runtime_leaves():
    """The estimate was one hour for everybody, doubled with each hour."""
    nodes = [node("n1", 8)]

    def eta(**known):
        held = running("long", "n1/0-7", ran=60.0, **known)
        return decide(cluster(nodes, [held]), waiting("head", "8")).holds[0].eta

    assert eta() == NOW - 60.0 + POLICY.default_runtime_seconds
    assert eta(expected_seconds=100.0) == NOW + 40.0
    assert eta(expected_seconds=50.0) == NOW + 40.0, "doubled once it is outlived"
    assert eta(expected_seconds=100.0, max_runtime_seconds=600.0) == NOW + 540.0, "a contract says more"


def test_the_estimates_of_those_who_wait_behind_each_other_add_up():
    held = running("now", "n1/0-7", ran=0.0, expected_seconds=100.0)
    queue = [waiting("first", "8", expected_seconds=30.0, waited=90), waiting("second", "8")]
    holds = decide(cluster([node("n1", 8)], [held]), *queue).holds
    assert {hold.run_id: hold.eta for hold in holds} == {"first": NOW + 100.0, "second": NOW + 130.0}


def test_what_has_been_learned_gives_no_right_to_pass():
    held = [running("long", "n1/0-3", max_runtime_seconds=7200.0, ran=0.0)]
    queue = [waiting("head", "8", waited=14_000), waiting("short", "4", expected_seconds=5.0, preemptible=False)]
    assert decide(cluster([node("n1", 8)], held), *queue).admits == ()
