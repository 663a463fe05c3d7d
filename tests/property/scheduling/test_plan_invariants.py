"""What no plan may ever do, over random clusters and queues."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.devices import Health
from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Policy, RunningGang, build_snapshot, plan
from tests.property.scheduling import worlds
from tests.workers.scheduling.world import carry_out

NOW = worlds.NOW


@st.composite
def situations(draw):
    cluster = draw(worlds.nodes(least=2))
    return cluster, draw(worlds.running(cluster)), draw(worlds.teams()), draw(worlds.queues(most=14))


def seen(situation):
    cluster, held, teams, _ = situation
    return build_snapshot(nodes=cluster, running=held, teams=teams, pool="p")


@settings(max_examples=150, deadline=None)
@given(situations())
def test_no_device_is_held_twice_and_every_gang_is_whole_or_absent(situation):
    cluster, held, teams, queue = situation
    result = plan(seen(situation), queue, Policy(), NOW)
    by_id = {gang.run_id: gang for gang in held}
    victims = {victim.run_id for admit in result.admits for victim in admit.victims}
    leaving = victims | {gang.run_id for gang in held if gang.evicting}
    devices = {device.uuid: (machine, device) for machine in cluster for device in machine.devices}
    taken = [uuid for admit in result.admits for uuid in admit.placement.devices]
    assert len(taken) == len(set(taken))
    assert not {uuid for gang in held if gang.run_id not in leaving for uuid in gang.placement.devices} & set(taken)
    wanted = {gang.run_id: gang.request for gang in queue}
    for admit in result.admits:
        request, members = wanted[admit.run_id], admit.placement.members
        assert len(members) == request.nodes == len({member.node for member in members})
        for member in members:
            assert len(member.devices) == request.devices_per_node
            for uuid in member.devices:
                machine, device = devices[uuid]
                assert machine.name == member.node and machine.schedulable and device.health is Health.HEALTHY
                assert request.gpu_model in (None, device.model)
        behind = {gang.run_id for gang in held if set(gang.placement.devices) & set(admit.placement.devices)}
        assert behind <= leaving
        assert set(admit.waits_for) | {v.run_id for v in admit.victims} >= behind
    for run_id in victims:
        victim = by_id[run_id]
        assert victim.request.preemptible and victim.request.kind is not Kind.INFERENCE and not victim.evicting
    answered = [admit.run_id for admit in result.admits] + [hold.run_id for hold in result.holds]
    assert sorted(answered) == sorted(gang.run_id for gang in queue)
    for name, team in teams.items():
        used = sum(len(g.placement.devices) for g in held if g.team == name and g.run_id not in leaving)
        new = sum(
            wanted[a.run_id].devices for a in result.admits if a.run_id in {q.run_id for q in queue if q.team == name}
        )
        if team.borrow_devices is not None and new:
            assert used + new <= max(team.nominal_devices + team.borrow_devices, used)


@settings(max_examples=100, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_planning_twice_is_equal_whatever_the_order_of_the_records(situation, random):
    cluster, held, teams, queue = situation
    first = plan(seen(situation), queue, Policy(), NOW)
    for records in (cluster, held, queue):
        random.shuffle(records)
    assert plan(seen((cluster, held, teams, queue)), queue, Policy(), NOW) == first


@settings(max_examples=150, deadline=None)
@given(situations())
def test_a_batch_equals_one_admission_at_a_time(situation):
    _, _, _, queue = situation
    batch = plan(seen(situation), queue, Policy(), NOW)
    snapshot, left, single = seen(situation), list(queue), []
    for _ in range(len(queue) + 1):
        step = plan(snapshot, left, Policy(max_admissions=1), NOW)
        single += step.admits
        if not step.admits:
            break
        snapshot = carry_out(snapshot, step, left, NOW)
        left = [gang for gang in left if gang.run_id != step.admits[0].run_id]
    assert [(a.run_id, a.placement, a.victims) for a in batch.admits] == [
        (a.run_id, a.placement, a.victims) for a in single
    ]
    assert [(h.run_id, h.reason.code) for h in batch.holds] == [(h.run_id, h.reason.code) for h in step.holds]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_over_fifty_cycles_no_two_gangs_evict_each_other_in_turn_and_the_queue_comes_to_rest(data):
    """Nobody commits, ends or arrives: only evictions move anything, so they must stop."""
    cluster = data.draw(worlds.nodes(least=2))
    teams = data.draw(worlds.teams())
    queue = data.draw(worlds.queues(most=10, max_runtime_seconds=None))
    held = data.draw(worlds.running(cluster))
    waiting, running, now, shadows = {g.run_id: g for g in queue}, {g.run_id: g for g in held}, NOW, ()
    pairs: dict[tuple[str, str], int] = {}
    requests = {g.run_id: (g.team, g.request, g.submitted_at) for g in [*queue, *held]}
    evicted_for: dict[str, tuple[str, ...]] = {}
    last = 0
    for cycle in range(50):
        now += 400.0  # longer than the minimum run, so nothing but rights stops an eviction
        snapshot = build_snapshot(nodes=cluster, running=list(running.values()), teams=teams, shadows=shadows, pool="p")
        result = plan(snapshot, list(waiting.values()), Policy(), now)
        shadows = result.shadows
        for admit in result.admits:
            last = cycle
            gang = waiting.pop(admit.run_id)
            for name in [victim.run_id for victim in admit.victims]:
                pairs[admit.run_id, name] = pairs.get((admit.run_id, name), 0) + 1
                evicted_for[name] = (*evicted_for.get(name, ()), admit.run_id)  # as the ledger remembers it
            for name in [victim.run_id for victim in admit.victims] + list(admit.waits_for):
                if name in running:
                    team, request, submitted = requests[name]
                    del running[name]
                    waiting[name] = replace(
                        queue[0], run_id=name, team=team, request=request, submitted_at=submitted,
                        eligible_at=submitted, evictions=1, not_before=None,
                        evicted_for=evicted_for.get(name, ()),
                    )  # fmt: skip
            running[admit.run_id] = RunningGang(
                run_id=gang.run_id, team=gang.team, request=gang.request, placement=admit.placement,
                submitted_at=gang.submitted_at, started_at=now,
                conditional_until=result.conditional.get(gang.run_id),
            )  # fmt: skip
    for preemptor, victim in pairs:
        assert (victim, preemptor) not in pairs, f"{preemptor} and {victim} evicted each other"
    assert last < 45, "evictions never stopped"
