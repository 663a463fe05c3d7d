"""No plan breaks a limit, a right or an operator's order, whatever the tree of teams."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsec_blocks.model.teams import Team, path_to_root
from dsec_workers.scheduling import Policy, build_snapshot, plan
from dsec_workers.scheduling.withheld import Withheld
from tests.property.scheduling import worlds
from tests.workers.scheduling.world import carry_out, node, running, waiting

NOW = worlds.NOW


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Team]:
    limits = st.sampled_from([None, None, None, 0, 2, 5])
    names = ("top", "mid", *worlds.TEAMS)
    parents = {"top": [None], "mid": [None, "top"], **{name: [None, "top", "mid", "mid"] for name in worlds.TEAMS}}
    return {
        name: Team(
            name=name,
            nominal_devices=draw(st.integers(0, 4)),
            borrow_devices=draw(limits),
            lend_devices=draw(limits),
            weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
            parent=draw(st.sampled_from(parents[name])),
            user_devices=draw(st.sampled_from([None, None, None, 3])),
        )
        for name in names
    }


@st.composite
def situations(draw: st.DrawFn):
    cluster = draw(worlds.nodes(least=2))
    people = st.sampled_from(["", "ann", "bob"])
    held = [replace(gang, created_by=draw(people)) for gang in draw(worlds.running(cluster))]
    queue = [replace(gang, created_by=draw(people)) for gang in draw(worlds.queues(most=12))]
    devices = [device.uuid for machine in cluster for device in machine.devices]
    kept = [
        Withheld(
            name=f"r{i}",
            devices=frozenset(draw(st.lists(st.sampled_from(devices), max_size=4))),
            start=NOW + draw(st.sampled_from([-10.0, 100.0, 5000.0])),
            end=NOW + 9000.0,
            teams=frozenset(draw(st.lists(st.sampled_from(worlds.TEAMS), max_size=1))),
            conditional=draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 2)))
    ]
    usage = {name: draw(st.sampled_from([0.0, 1e4, 1e6])) for name in worlds.TEAMS}
    return cluster, held, draw(trees()), queue, kept, usage


A_CORDONED_NODE_IN_USE = (
    [node("n0", 1, schedulable=False), node("n1", 4)],
    [running("r0", "n0/0", team="a", preemptible=False), running("r1", "n1/0-2", team="a", preemptible=False)],
    {
        "top": Team(name="top", nominal_devices=0),
        "mid": Team(name="mid", nominal_devices=0),
        "a": Team(name="a", nominal_devices=0, parent="top"),
        "b": Team(name="b", nominal_devices=0),
        "c": Team(name="c", nominal_devices=1, lend_devices=2, parent="top"),
    },
    [waiting("q0", "1", team="c", preemptible=False)],
    [],
    {"a": 0.0, "b": 0.0, "c": 0.0},
)
"""Four devices in use of four that may be taken and one that may not; the fifth is given to its owner."""


def seen(situation):
    cluster, held, teams, _, kept, usage = situation
    return build_snapshot(nodes=cluster, running=held, teams=teams, withheld=kept, usage=usage, pool="p")


@settings(max_examples=120, deadline=None)
@given(situations())
@example(A_CORDONED_NODE_IN_USE)
def test_no_limit_of_any_ancestor_is_passed_and_no_lender_is_drained(situation):
    cluster, held, teams, queue, _, _ = situation
    result = plan(seen(situation), queue, Policy(), NOW)
    victims = {victim.run_id for admit in result.admits for victim in admit.victims}
    by_id = {gang.run_id: gang for gang in queue}
    team_of = {admit.run_id: by_id[admit.run_id].team for admit in result.admits}
    before = dict.fromkeys(teams, 0)
    staying = dict(before)
    after = dict(before)
    for gang in held:
        for name in path_to_root(gang.team, teams):
            before[name] += len(gang.placement.devices) * (not gang.evicting)
            staying[name] += len(gang.placement.devices) * (not gang.evicting and gang.run_id not in victims)
    after = dict(staying)
    for admit in result.admits:
        for name in path_to_root(team_of[admit.run_id], teams):
            after[name] += len(admit.placement.devices)
    owned = dict.fromkeys(teams, 0)
    for team in teams.values():
        for name in path_to_root(team.name, teams):
            owned[name] += team.nominal_devices
    grew = {name for name in teams if after[name] > staying[name]}
    for name in grew:
        if teams[name].borrow_devices is not None:
            assert after[name] <= owned[name] + teams[name].borrow_devices
    roots = [team for team in teams.values() if team.parent is None]
    if any(team.lend_devices is not None for team in teams.values()):
        # What runs on a cordoned node or a sick device counts as used, so its devices count as there while it stays:
        # without them, whoever takes what is free and his own would seem to take more than there is.
        usable = {
            d.uuid for machine in cluster for d in machine.devices if d.health == "healthy" and machine.schedulable
        }
        stay = [gang for gang in held if not gang.evicting and gang.run_id not in victims]
        capacity = len(usable) + sum(uuid not in usable for gang in stay for uuid in gang.placement.devices)
        for root in roots:
            if root.name not in grew or after[root.name] <= owned[root.name]:
                continue
            kept = {
                other.name: max(0, owned[other.name] - other.lend_devices)
                for other in roots
                if other.lend_devices is not None and other.name != root.name
            }
            used = sum(max(after[other.name], kept.get(other.name, 0)) for other in roots if other.name != root.name)
            assert after[root.name] + used <= max(capacity, sum(owned[other.name] for other in roots))


@settings(max_examples=120, deadline=None)
@given(situations())
def test_whoever_is_evicted_by_reclaiming_was_over_what_it_owns_up_to_the_common_ancestor(situation):
    _, held, teams, queue, _, _ = situation
    result = plan(seen(situation), queue, Policy(), NOW)
    by_id = {gang.run_id: gang for gang in [*held, *queue]}
    for admit in result.admits:
        preemptor = by_id[admit.run_id]
        for found in admit.victims:
            victim = by_id[found.run_id]
            if victim.request.priority < preemptor.request.priority:
                continue
            # By right of reclaiming: between different teams, and some step of the victim's path borrows.
            assert victim.team != preemptor.team
            mine = list(path_to_root(preemptor.team, teams))
            theirs = [name for name in path_to_root(victim.team, teams) if name not in mine]
            used = dict.fromkeys(teams, 0)
            for gang in held:
                if not gang.evicting:
                    used[gang.team] += len(gang.placement.devices)
            for earlier in result.admits[: result.admits.index(admit)]:
                used[by_id[earlier.run_id].team] += len(earlier.placement.devices)
            assert used[victim.team] > teams[victim.team].nominal_devices or not theirs


@settings(max_examples=120, deadline=None)
@given(situations())
def test_nobody_starts_on_devices_that_are_kept_from_him(situation):
    _, _, _, queue, kept, _ = situation
    result = plan(seen(situation), queue, Policy(), NOW)
    by_id = {gang.run_id: gang for gang in queue}
    for admit in result.admits:
        gang = by_id[admit.run_id]
        for order in kept:
            if not order.devices & set(admit.placement.devices) or gang.team in order.teams:
                continue
            limit = gang.request.max_runtime_seconds
            ends_in_time = limit is not None and NOW + limit <= order.start
            assert ends_in_time or (order.conditional and gang.request.evictable and order.start > NOW)


@settings(max_examples=120, deadline=None)
@given(situations())
def test_one_person_never_gets_more_than_the_team_lets_one_have(situation):
    _, held, teams, queue, _, _ = situation
    result = plan(seen(situation), queue, Policy(), NOW)
    victims = {victim.run_id for admit in result.admits for victim in admit.victims}
    by_id = {gang.run_id: gang for gang in queue}
    got: dict[tuple[str, str], int] = {}
    for admit in result.admits:
        key = (by_id[admit.run_id].team, by_id[admit.run_id].created_by)
        got[key] = got.get(key, 0) + len(admit.placement.devices)
    for (name, person), new in got.items():
        most = teams[name].user_devices
        has = sum(
            len(gang.placement.devices)
            for gang in held
            if (gang.team, gang.created_by) == (name, person) and not gang.evicting and gang.run_id not in victims
        )
        assert most is None or not new or has + new <= most


@settings(max_examples=120, deadline=None)
@given(situations())
def test_a_batch_equals_one_admission_at_a_time_in_any_tree(situation):
    queue = situation[3]
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


@settings(max_examples=60, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_planning_twice_is_equal_in_any_tree(situation, random):
    cluster, held, teams, queue, kept, usage = situation
    first = plan(seen(situation), queue, Policy(), NOW)
    for records in (cluster, held, queue, kept):
        random.shuffle(records)
    assert plan(seen((cluster, held, teams, queue, kept, usage)), queue, Policy(), NOW) == first
