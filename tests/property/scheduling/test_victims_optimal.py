"""The victims against an oracle that tries every set."""

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang, build_snapshot, plan
from tests.property.scheduling import worlds
from tests.property.scheduling.oracle import NOW, POLICY, cheapest, may_go, places
from tests.workers.scheduling.world import admitted, cluster, decide, node, running, waiting

LEVELS = [Topology.RACK, Topology.BLOCK, Topology.ZONE, Topology.SPREAD, Topology.SPREAD]


@pytest.mark.parametrize(
    ("topology", "racks", "fits"),
    [
        (Topology.RACK, "rr", True), (Topology.RACK, "rs", False), (Topology.ZONE, "rs", True),
        (Topology.BLOCK, "rr", False), (Topology.SPREAD, "rs", True), (Topology.SPREAD, "rr", False),
        (Topology.DOMAIN, "rr", False), (Topology.NODE_DOMAIN, "rr", True),
    ],
)  # fmt: skip
def test_nodes_of_one_rack_are_refused_because_no_nvlink_joins_them(topology, racks, fits):
    """As found, with two nodes out of use: neither plan() nor the oracle may ask a rack for an NVLink domain."""
    machines = [
        replace(node(f"n{i}", size, schedulable=i > 1), topology=("z", rack))
        for i, (size, rack) in enumerate(zip((1, 1, 4, 2), racks[0] * 3 + racks[1], strict=True))
    ]
    held = [running("r0", "n2/0-1", priority=9), running("r2", "n0/0"), running("r3", "n1/0")]
    gang = waiting("q0", "2x1", topology=topology, priority=1)
    snapshot = cluster(machines, held)
    taken = {uuid for holder in held for uuid in holder.placement.devices}
    free = {device.uuid for machine in machines for device in machine.devices} - taken
    assert places(machines, free, gang.request) is fits
    assert admitted(decide(snapshot, gang)) == ({"q0": ["n2", "n3"]} if fits else {})


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_the_victims_cost_as_much_as_the_cheapest_of_all_sets(data):
    machines = data.draw(worlds.nodes(least=2, most=4))
    held = data.draw(worlds.running(machines, least=5, most=11))
    teams = data.draw(worlds.teams())
    (gang,) = data.draw(
        worlds.queues(most=1, priority=data.draw(st.sampled_from([1, 2, 3, 4])), max_runtime_seconds=None)
    )
    result = plan(build_snapshot(nodes=machines, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    if gang.not_before is not None:
        assert result.admits == ()
        return
    expected = cheapest(machines, held, gang, teams)
    if expected is None:
        assert result.admits == ()
    else:
        (admit,) = result.admits
        assert admit.optimal
        assert abs(sum(victim.cost for victim in admit.victims) - expected) < 1e-6


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_gangs_bound_to_a_level_or_spread_over_racks_evict_the_cheapest_set(data):
    draw = data.draw
    machines = draw(worlds.nodes(least=2, most=5))
    if draw(st.booleans()):
        blocks = st.sampled_from(["b0", "b1"])
        machines = [replace(machine, topology=("z", draw(blocks), machine.topology[-1])) for machine in machines]
    held = draw(worlds.running(machines, least=3, most=10))
    teams = draw(worlds.teams())
    fixed = {"nodes": draw(st.sampled_from([2, 3])), "topology": draw(st.sampled_from(LEVELS)), "priority": 4}
    (gang,) = draw(worlds.queues(most=1, max_runtime_seconds=None, **fixed))
    gang = replace(gang, not_before=None)
    result = plan(build_snapshot(nodes=machines, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    expected = cheapest(machines, held, gang, teams)
    if expected is None:
        assert result.admits == ()
    else:
        (admit,) = result.admits
        assert admit.optimal
        assert abs(sum(victim.cost for victim in admit.victims) - expected) < 1e-6


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_whoever_holds_the_processors_or_the_memory_goes_and_the_set_is_the_cheapest(data):
    draw = data.draw
    sizes = st.sampled_from([3.0, 5.0, 8.0])
    machines = [
        replace(machine, schedulable=True, cpus=draw(sizes), memory_bytes=int(draw(sizes)) * worlds.GIB)
        for machine in draw(worlds.nodes(least=1, most=4))
    ]
    held = draw(worlds.running(machines, least=2, most=8))
    for number in range(draw(st.integers(0, 2))):  # without a card
        place = Placement(members=(MemberPlacement(node=draw(st.sampled_from(machines)).name, devices=()),))
        request = draw(worlds.requests(nodes=1, devices_per_node=0, gpu_model=None, topology=Topology.PREFERRED))
        held.append(
            RunningGang(
                run_id=f"c{number}", team=draw(st.sampled_from(worlds.TEAMS)), request=request, placement=place,
                submitted_at=NOW - 5000, started_at=NOW - 5000, first_commit_at=NOW - 4000, last_commit_at=NOW - 9,
            )
        )  # fmt: skip
    teams = draw(worlds.teams())
    asks = {
        "cpus": draw(st.sampled_from([2.0, 3.0, 5.0])),
        "memory_bytes": draw(st.sampled_from([None, 3 * worlds.GIB])),
    }
    (gang,) = draw(worlds.queues(most=1, priority=4, max_runtime_seconds=None, **asks))
    gang = replace(gang, not_before=None)
    result = plan(build_snapshot(nodes=machines, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    expected = cheapest(machines, held, gang, teams)
    if expected is None:
        assert result.admits == ()
        return
    (admit,) = result.admits
    event(f"victims: {min(3, len(admit.victims))}")
    assert admit.optimal
    assert abs(sum(victim.cost for victim in admit.victims) - expected) < 1e-6
    gone = {victim.run_id for victim in admit.victims}
    for name in sorted(gone):
        stay = [g for g in held if not g.evicting and (g.run_id not in gone or g.run_id == name)]
        kept = {uuid for g in stay for uuid in g.placement.devices}
        free = {device.uuid for machine in machines for device in machine.devices} - kept
        used = {n: sum(len(g.placement.devices) for g in held if g.team == n and not g.evicting) for n in teams}
        rest = [g for g in held if g.run_id in gone and g.run_id != name]
        assert not (places(machines, free, gang.request, stay) and may_go(rest, gang, used, teams)), "needless"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_search_with_hardly_any_budget_never_evicts_more_than_it_needs(data):
    machines = data.draw(worlds.nodes(most=5))
    held = data.draw(worlds.running(machines, least=6, most=12))
    teams = data.draw(worlds.teams())
    (gang,) = data.draw(worlds.queues(most=1, priority=3))
    policy = Policy(search_budget=data.draw(st.integers(1, 40)), exact_candidates=data.draw(st.integers(0, 4)))
    result = plan(build_snapshot(nodes=machines, running=held, teams=teams, pool="p"), [gang], policy, NOW)
    for admit in result.admits:
        victims = {victim.run_id for victim in admit.victims}
        used = {n: sum(len(g.placement.devices) for g in held if g.team == n and not g.evicting) for n in teams}
        by_id = {g.run_id: g for g in held}
        taken = {uuid for g in held if not g.evicting for uuid in g.placement.devices}
        every = {device.uuid for machine in machines for device in machine.devices}
        for left_out in victims:
            rest = [by_id[name] for name in victims - {left_out}]
            freed = (every - taken) | {uuid for g in rest for uuid in g.placement.devices}
            stay = [g for g in held if not g.evicting and g not in rest]
            assert not (places(machines, freed, gang.request, stay) and may_go(rest, gang, used, teams))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_in_a_crowded_cluster_many_victims_are_still_the_cheapest_set(data):
    draw = data.draw
    shared = draw(st.booleans())
    machines = [
        Node(
            name=f"n{i}",
            topology=("z", f"r{i // 2}"),
            devices=tuple(
                Device(
                    uuid=f"n{i}/{k}",
                    node=f"n{i}",
                    index=k,
                    model="H100",
                    memory_bytes=1,
                    nvlink_domain=f"d{i // 2}" if shared else f"n{i}",
                )
                for k in range(4)
            ),
        )
        for i in range(4)
    ]
    held, free = [], [[f"n{i}/{k}" for k in range(4)] for i in range(4)]
    while len(held) < 11 and any(free):
        width = draw(st.integers(1, 2))
        hosts = [i for i in draw(st.permutations(range(4))) if len(free[i]) >= width][: draw(st.integers(1, 2))]
        if not hosts:
            break
        young = draw(st.integers(0, 3)) == 3
        held.append(
            RunningGang(
                run_id=f"r{len(held)}",
                team=draw(st.sampled_from(worlds.TEAMS)),
                request=GangRequest(
                    nodes=len(hosts), devices_per_node=width, priority=draw(st.sampled_from([0, 0, 0, 5]))
                ),
                placement=Placement(
                    members=tuple(
                        MemberPlacement(node=f"n{i}", devices=tuple(free[i].pop(0) for _ in range(width)))
                        for i in hosts
                    )
                ),
                submitted_at=NOW - 9000,
                started_at=NOW - 10 if young else NOW - 9000 + len(held),
                first_commit_at=None if young else NOW - 8000,
                last_commit_at=NOW - draw(st.integers(0, 60)),
            )
        )
    teams = {
        name: Team(name=name, nominal_devices=draw(st.sampled_from([0, 2, 5])), borrow_devices=draw(limit))
        for name, limit in zip(worlds.TEAMS, [st.none(), st.sampled_from([4, 6]), st.none()], strict=True)
    }
    nodes, devices, topology = draw(
        st.sampled_from(
            [
                (1, 4, Topology.PREFERRED),
                (2, 2, Topology.PREFERRED),
                (3, 2, Topology.PREFERRED),
                (2, 4, Topology.DOMAIN),
                (2, 3, Topology.DOMAIN),
                (3, 3, Topology.NODE_DOMAIN),
                (2, 3, Topology.RACK),
                (2, 2, Topology.SPREAD),
            ]
        )
    )
    gang = QueuedGang(
        run_id="q",
        team=draw(st.sampled_from(worlds.TEAMS)),
        request=GangRequest(nodes=nodes, devices_per_node=devices, topology=topology, priority=3),
        submitted_at=NOW,
        eligible_at=NOW,
    )
    result = plan(build_snapshot(nodes=machines, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    expected = cheapest(machines, held, gang, teams)
    if expected is None:
        assert result.admits == ()
    else:
        assert result.admits[0].optimal
        assert abs(sum(victim.cost for victim in result.admits[0].victims) - expected) < 1e-6
