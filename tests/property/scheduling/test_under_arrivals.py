"""Nobody waits for ever while others keep arriving, and nobody evicts in turn, whatever the policy."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsec_blocks.model.reasons import NEEDS_A_CHANGE
from dsec_blocks.model.requests import Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang
from tests.property.scheduling import worlds
from tests.property.scheduling.pool import Pool
from tests.property.scheduling.test_waiting_ends import sound

NOW = worlds.NOW
LONGEST, STEP, HAND_OVER = 120.0, 14.0, 1.0
AGE = {"max_age_seconds": 120.0}
POLICIES = {
    "the default": Policy(**AGE),
    "overtaken by all": Policy(**AGE, overtaking=1.0),
    "moving and resizing": Policy(**AGE, consolidation=True, resizing=True, move_interval_seconds=600.0),
    "time sharing": Policy(**AGE, time_sharing=True, level_device_seconds=(60.0, 400.0, 2000.0)),
}
of_each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@of_each_policy
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_gang_whose_team_has_quota_starts_within_the_bound_while_others_keep_arriving(policy, data):
    """The bound: max_age, and then the longest run times of all that were submitted before it and of one more.

    Those of higher base priority, and those without an enforced max_runtime, are no part of the promise.
    """
    cluster = sound(data.draw(worlds.nodes(least=2, most=3)))
    # Mostly nobody borrows, so that nobody has to give way: what is waited for are ends.
    teams = {name: Team(name=name, nominal_devices=1000) for name in worlds.TEAMS}
    if data.draw(st.integers(0, 3)) == 0:
        teams = data.draw(worlds.teams()) | {"a": teams["a"]}
    pool = Pool(cluster, teams, policy, NOW)
    older = data.draw(worlds.queues(most=2, priority=0))
    # Narrow ones of all lengths, so that what becomes free never becomes free together.
    kinds = data.draw(worlds.queues(most=4, priority=0, nodes=1, devices_per_node=1))
    lengths = data.draw(st.lists(st.sampled_from([30.0, 50.0, 80.0, LONGEST]), min_size=3, max_size=6))
    width = {"nodes": len(cluster), "devices_per_node": min(len(node.devices) for node in cluster)}
    asked = {"topology": Topology.PREFERRED, "gpu_model": None, **width} if data.draw(st.booleans()) else {}
    wide = data.draw(worlds.requests(priority=0, kind=Kind.TRAINING, preemptible=True, **asked))
    subject = QueuedGang(run_id="subject", team="a", request=wide, submitted_at=NOW, eligible_at=NOW)
    starts_within_the_bound(pool, subject, older, kinds, lengths)


@of_each_policy
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_gang_without_cards_starts_within_the_bound_while_others_keep_arriving(policy, data):
    """Large ones among small ones that would always find room before them, and among gangs with cards."""
    cluster = [replace(node, cpus=8.0) for node in sound(data.draw(worlds.nodes(least=1, most=2)))]
    pool = Pool(cluster, {name: Team(name=name, nominal_devices=1000) for name in worlds.TEAMS}, policy, NOW)
    older = data.draw(worlds.queues(most=2, priority=0, cpus=2.0))
    without = {"gpu_model": None, "memory_bytes": None, "topology": Topology.PREFERRED, "priority": 0}
    small = {**without, "nodes": 1, "cpus": data.draw(st.sampled_from([2.0, 3.0, 4.0]))}
    kinds = data.draw(worlds.queues(most=3, devices_per_node=0, **small))
    kinds += data.draw(worlds.queues(most=2, devices_per_node=1, **small))
    lengths = data.draw(st.lists(st.sampled_from([30.0, 50.0, 80.0, LONGEST]), min_size=3, max_size=6))
    large = {
        **without,
        "nodes": data.draw(st.integers(1, len(cluster))),
        "cpus": data.draw(st.sampled_from([5.0, 8.0])),
    }
    wide = data.draw(worlds.requests(devices_per_node=0, **large))
    subject = QueuedGang(run_id="subject", team="a", request=wide, submitted_at=NOW, eligible_at=NOW)
    starts_within_the_bound(pool, subject, older, kinds, lengths)


def starts_within_the_bound(pool, subject, older, kinds, lengths):
    """Let it run, with further ones arriving whenever fewer than five wait."""
    policy = pool.policy

    def arrives(gang, name, at, length):
        request = replace(gang.request, max_runtime_seconds=length)
        if policy.resizing and request.nodes > 1:
            request = replace(request, min_nodes=1)
        pool.submit(replace(gang, run_id=name, request=request, submitted_at=at, eligible_at=at, not_before=None))

    for number, gang in enumerate(older):
        arrives(gang, f"o{number}", NOW - 1.0, LONGEST)
    arrives(subject, "subject", NOW, LONGEST)
    result = pool.cycle()
    assume(not any(h.run_id == "subject" and h.reason.code in NEEDS_A_CHANGE for h in result.holds))
    bound = policy.max_age_seconds + (LONGEST + STEP + HAND_OVER) * (len(older) + 2)
    since, arrived = NOW, 0
    while pool.now < NOW + 2 * bound:
        while len(pool.waiting) < 5:
            arrives(kinds[arrived % len(kinds)], f"n{arrived}", pool.now, lengths[arrived % len(lengths)])
            arrived += 1
        for hold in pool.cycle().holds:
            if hold.reason.code in NEEDS_A_CHANGE:
                del pool.waiting[hold.run_id]  # given up: it would only be in the way of further arrivals
        pool.advance(HAND_OVER)
        pool.victims_leave()
        pool.advance(STEP)
        if "subject" in pool.running and not pool.running["subject"].promised:
            since = pool.now
        elif "subject" not in pool.waiting and "subject" not in pool.running:
            return
        assert pool.now - since <= bound, f"has waited {pool.now - since:.0f} s behind {sorted(pool.running)}"


@of_each_policy
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_over_fifty_cycles_nobody_evicts_in_turn_but_by_levels_and_those_only_fall(policy, data):
    """Nobody ends or arrives; a level may be passed once by either, and each has one lift."""
    cluster = data.draw(worlds.nodes(least=2))
    held = [replace(gang, evicting=False) for gang in data.draw(worlds.running(cluster))]
    pool = Pool(cluster, data.draw(worlds.teams()), policy, NOW)
    elastic = policy.resizing
    for gang in held:
        limit = {"max_runtime_seconds": None, "min_nodes": 1 if elastic and gang.request.nodes > 1 else None}
        pool.put(replace(gang, request=replace(gang.request, **limit)))
    for gang in data.draw(worlds.queues(most=8)):
        pool.submit(replace(gang, request=replace(gang.request, max_runtime_seconds=None), not_before=None))
    told: Counter[tuple[str, str]] = Counter()
    for _ in range(50):
        for admit in pool.cycle().admits:
            told.update((admit.run_id, victim.run_id) for victim in admit.victims)
        pool.advance(HAND_OVER)
        pool.victims_leave()
        pool.advance(400.0)
    most = len(policy.level_device_seconds) + 1 if policy.time_sharing else 0
    for one, other in told:
        assert min(told[one, other], told[other, one]) <= most, f"{one} and {other} evict each other in turn"
