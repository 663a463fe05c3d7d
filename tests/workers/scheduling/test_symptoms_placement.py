"""Symptoms that users of other schedulers report about placement, topology, slices and health, one test each.

The numbers are those of the research notes; each test states what must happen instead.
"""

from dataclasses import replace

import numpy as np
import pytest

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy
from tests.workers.scheduling.world import GIB, admitted, cluster, decide, node, running, texts, waiting, why

RACKS = [node(f"{r}{i}", 4, domain=f"{r}{i}", rack=r) for r in ("ra", "rb", "rc") for i in range(3)]


def test_t26_two_gangs_that_each_get_half_and_wait_for_ever_for_the_other_half():
    snapshot = cluster([node(f"n{i}", 8) for i in range(10)])
    result = decide(snapshot, waiting("first", "10x8"), waiting("second", "10x8", waited=30))
    assert {run: len(nodes) for run, nodes in admitted(result).items()} == {"first": 10}
    assert why(result) == {"second": "waits-for-capacity"}


def test_t31_a_gang_larger_than_anything_the_cluster_has_is_half_placed():
    result = decide(cluster(RACKS), waiting("huge", "10x4"))
    assert admitted(result) == {} and why(result) == {"huge": "never-fits"}


def test_t32_pinned_to_a_domain_that_cannot_hold_the_whole_gang():
    busy = [running(f"r{i}", f"{r}0/0") for i, r in enumerate(("ra", "rb", "rc"))]
    result = decide(cluster(RACKS, busy), waiting("gang", "3x4", topology=Topology.RACK))
    assert admitted(result) == {}
    assert texts(result)["gang"] == (
        "needs 3×4 GPUs in one rack; 33 free but not in this shape: 2 of 3 nodes have 4 free in the best rack"
    )


def test_t34_a_member_that_comes_late_lands_in_another_rack():
    elastic = {"min_nodes": 2, "topology": Topology.RACK}
    first = [running("gang", "ra0/0-3", "ra1/0-3"), running("other", "ra2/0-3")]
    grown = replace(first[0], request=replace(first[0].request, nodes=3, **elastic), started_at=0.0)
    plan = decide(cluster(RACKS, [grown, first[1]]), policy=Policy(resizing=True))
    assert plan.growths == ()
    plan = decide(cluster(RACKS, [grown]), policy=Policy(resizing=True))
    assert [{m.node for m in growth.placement.members} for growth in plan.growths] == [{"ra0", "ra1", "ra2"}]


def test_t45_eight_free_as_twice_four_admit_a_gang_of_eight_which_then_hangs():
    snapshot = cluster([node("n1", 8), node("n2", 8)], [running("r1", "n1/0-3"), running("r2", "n2/0-3")])
    assert why(decide(snapshot, waiting("eight", "8"))) == {"eight": "fragmented"}


@pytest.mark.parametrize("gpus", [4, 8])
def test_t46_single_gpu_jobs_scattered_over_every_rack(gpus):
    racks = [node(f"{r}{i}", gpus, domain=r, rack=r) for r in ("ra", "rb", "rc") for i in range(2)]
    jobs = [waiting(f"j{i:02}", "1", waited=100 - i) for i in range(2 * gpus)]
    used = {name[:2] for names in admitted(decide(cluster(racks), *jobs)).values() for name in names}
    assert len(used) == 1


def test_t47_soft_mode_picks_two_racks_though_one_fits():
    for topology in (Topology.PREFERRED, Topology.RACK):
        busy = [running("r1", "ra0/0-3"), running("r2", "rb0/0-1"), running("r3", "rb1/0-1")]
        nodes = admitted(decide(cluster(RACKS, busy), waiting("pair", "2x2", topology=topology)))["pair"]
        assert len({name[:2] for name in nodes}) == 1


def test_replicas_that_must_not_fail_together_share_a_rack():
    result = decide(cluster(RACKS), waiting("apart", "3x1", topology=Topology.SPREAD))
    assert sorted(name[:2] for name in admitted(result)["apart"]) == ["ra", "rb", "rc"]
    assert why(decide(cluster(RACKS), waiting("apart", "4x1", topology=Topology.SPREAD))) == {"apart": "never-fits"}


@pytest.mark.parametrize(("topology", "shared"), [(Topology.ZONE, 1), (Topology.BLOCK, 2), (Topology.RACK, 3)])
def test_a_gang_bound_to_a_level_gets_nodes_of_two_of_its_groups(topology, shared):
    nodes = [
        replace(node(f"{z}{b}{r}{i}", 2), topology=(z, f"{z}{b}", f"{z}{b}{r}"))
        for z in "xy" for b in "mn" for r in "pq" for i in range(2)
    ]  # fmt: skip
    snapshot = cluster(nodes)
    sizes = {Topology.ZONE: 8, Topology.BLOCK: 4, Topology.RACK: 2}
    most = sizes[topology]
    chosen = admitted(decide(snapshot, waiting("all", f"{most}x2", topology=topology)))["all"]
    assert len({name[:shared] for name in chosen}) == 1
    assert why(decide(snapshot, waiting("more", f"{most + 1}x2", topology=topology))) == {"more": "never-fits"}


def test_cards_stranded_beside_processors_that_are_gone():
    """A GPU gang that says it needs 32 CPUs is not put beside 8 free ones, and another takes the card instead."""
    small = replace(node("small", 2), cpus=16.0, memory_bytes=64 * GIB)
    large = replace(node("large", 2), cpus=64.0, memory_bytes=512 * GIB)
    snapshot = cluster([small, large])
    result = decide(snapshot, waiting("hungry", "1", cpus=32.0), waiting("modest", "1", cpus=8.0, waited=1))
    assert admitted(result) == {"hungry": ["large"], "modest": ["small"]}
    assert why(decide(snapshot, waiting("never", "1", cpus=65.0))) == {"never": "never-fits"}


def test_processors_are_counted_for_gangs_admitted_in_the_same_cycle_and_given_back():
    snapshot = cluster([replace(node("n", 8), cpus=10.0)])
    jobs = [waiting(f"j{i}", "1", cpus=4.0, waited=10 - i) for i in range(3)]
    result = decide(snapshot, *jobs)
    assert sorted(admitted(result)) == ["j0", "j1"] and list(why(result)) == ["j2"]
    held = [running("a", "n/0", cpus=4.0), running("b", "n/1", cpus=4.0)]
    assert admitted(decide(cluster([replace(node("n", 8), cpus=10.0)], held), jobs[2])) == {}
    assert admitted(decide(cluster([replace(node("n", 8), cpus=10.0)], held[:1]), jobs[2])) == {"j2": ["n"]}


def test_members_without_gpus_are_piled_on_a_node_beyond_its_memory():
    nodes = [replace(node(name, 1), memory_bytes=size * GIB) for name, size in (("n1", 10), ("n2", 30))]
    assert admitted(decide(cluster(nodes), waiting("cpu", "4x0", memory_bytes=10 * GIB)))["cpu"].count("n2") == 3
    assert admitted(decide(cluster(nodes), waiting("cpu", "5x0", memory_bytes=10 * GIB))) == {}


def test_a_request_that_accepts_two_models_waits_for_the_one_named_first():
    snapshot = cluster([node("a", 2, model="A100"), node("h", 2)], [running("r", "h/0-1")])
    assert admitted(decide(snapshot, waiting("either", "1", gpu_model="H100|A100"))) == {"either": ["a"]}


def test_an_unconstrained_job_takes_the_only_card_of_a_model_that_others_insist_on():
    snapshot = cluster([node("a", 4, model="A100"), node("b", 4)])
    insisting = [waiting(f"i{i}", "4", gpu_model="A100", waited=1.0) for i in range(1)]
    anybody = [waiting(f"any{i}", "1", waited=500 - i) for i in range(4)]
    result = admitted(decide(snapshot, *anybody, *insisting))
    assert result["i0"] == ["a"] and {nodes[0] for run, nodes in result.items() if run != "i0"} == {"b"}


def test_a_gang_is_sent_where_none_of_its_inputs_are_though_another_node_has_them():
    snapshot = cluster([node(f"n{i}", 4) for i in range(4)])
    warm = replace(waiting("warm", "4"), seconds_saved=(("n2", 900.0), ("gone", 900.0)))
    assert admitted(decide(snapshot, warm)) == {"warm": ["n2"]}


def test_t49_of_a_gangs_failed_nodes_only_the_first_is_replaced_and_an_empty_replacement_is_placed():
    """A gang that lost two of its nodes is placed anew as a whole: on none of the failed ones, or not at all."""
    failed = [node("n1", 4, frozen=range(4)), node("n2", 4, schedulable=False)]
    back = waiting("back", "3x4", evictions=1, waited=9000.0)
    sound = [node(f"n{i}", 4) for i in range(3, 6)]
    assert admitted(decide(cluster([*failed, *sound]), back)) == {"back": ["n3", "n4", "n5"]}
    result = decide(cluster([*failed, *sound[:2]]), back)
    assert result.admits == () and list(why(result)) == ["back"]


def sliced(name, *profiles, frozen=False):
    """A node with one card that is cut into `profiles`, and a whole one."""
    card = Device(uuid=f"{name}/0", node=name, index=0, model="H100", memory_bytes=80 * GIB,
                  health=Health.FROZEN if frozen else Health.HEALTHY)  # fmt: skip
    parts = [
        Device(uuid=f"{name}/0.{i}", node=name, index=2 + i, model="H100", memory_bytes=10 * GIB * int(profile[0]),
               slice_of=card.uuid, profile=profile)
        for i, profile in enumerate(profiles)
    ]  # fmt: skip
    whole = Device(uuid=f"{name}/1", node=name, index=1, model="H100", memory_bytes=80 * GIB)
    return Node(name=name, devices=(card, whole, *parts))


def test_t52_a_slice_freed_at_the_wrong_offset_leaves_memory_free_but_no_profile_possible():
    """Nobody cuts a card anew: what a gang leaves is the slice that it had, and the next of its profile has it."""
    machine = sliced("n", "1g.10gb", "4g.40gb", "1g.10gb")
    full = []
    for i, share in enumerate(("1g.10gb", "4g.40gb", "1g.10gb")):
        gang = running(f"r{i}", "n/0", share=share)
        (member,) = gang.placement.members
        place = replace(gang.placement, members=(replace(member, devices=(f"n/0.{i}",)),))
        full.append(replace(gang, placement=place))
    for gone, share in enumerate(("1g.10gb", "4g.40gb", "1g.10gb")):
        snapshot = cluster([machine], [gang for gang in full if gang is not full[gone]])
        (admit,) = decide(snapshot, waiting("next", "1", share=share)).admits
        assert admit.placement.devices == (f"n/0.{gone}",)


def test_t53_slices_are_counted_twice_or_more_than_the_card_has():
    snapshot = cluster([sliced("n", *["1g.10gb"] * 3)])
    result = decide(snapshot, *[waiting(f"s{i}", "1", share="1g.10gb", waited=9 - i) for i in range(4)])
    taken = [uuid for admit in result.admits for uuid in admit.placement.devices]
    assert sorted(taken) == ["n/0.0", "n/0.1", "n/0.2"] and list(why(result)) == ["s3"]


def test_t53_a_card_that_is_cut_is_given_away_as_a_whole_too():
    snapshot = cluster([sliced("n", "3g.40gb", "3g.40gb")])
    result = decide(snapshot, *[waiting(f"w{i}", "1", waited=9 - i) for i in range(2)])
    assert [admit.placement.devices for admit in result.admits] == [("n/1",)] and list(why(result)) == ["w1"]


@pytest.mark.parametrize(
    ("share", "gets"),
    [("3g.40gb", {"n/0.0"}), ("1g.10gb", {"n/0.1"}), ("0.4", {"n/0.0"}), ("0.1", {"n/0.0", "n/0.1"}), ("0.6", set())],
)
def test_a_request_for_a_share_is_given_a_whole_card_or_the_wrong_slice(share, gets):
    result = decide(cluster([sliced("n", "3g.40gb", "1g.10gb")]), waiting("part", "1", share=share))
    taken = {uuid for admit in result.admits for uuid in admit.placement.devices}
    assert taken <= gets and bool(taken) == bool(gets)


def test_t54_a_fault_of_a_card_leaves_its_slices_in_use():
    snapshot = cluster([sliced("n", "3g.40gb", frozen=True)])
    assert admitted(decide(snapshot, waiting("part", "1", share="3g.40gb"))) == {}
    assert admitted(decide(snapshot, waiting("whole", "1"))) == {"whole": ["n"]}


def test_t54_one_xid_on_one_card_makes_every_pod_on_the_node_fail():
    snapshot = cluster([node("n", 8, frozen=[3])])
    result = decide(snapshot, *[waiting(f"j{i}", "1", waited=20 - i) for i in range(8)])
    used = {uuid for admit in result.admits for uuid in admit.placement.devices}
    assert used == {f"n/{i}" for i in range(8) if i != 3} and len(why(result)) == 1


def test_a_mixed_node_is_counted_by_each_models_cards():
    devices = tuple(
        Device(uuid=f"m/{i}", node="m", index=i, model="H100" if i < 2 else "L4", memory_bytes=80 * GIB)
        for i in range(4)
    )
    snapshot = cluster([Node(name="m", devices=devices)])
    result = decide(snapshot, *[waiting(f"h{i}", "1", gpu_model="H100", waited=9 - i) for i in range(3)])
    taken = {uuid for admit in result.admits for uuid in admit.placement.devices}
    assert taken == {"m/0", "m/1"} and list(why(result)) == ["h2"]
    assert np.isfinite(snapshot.fleet.node_class).all()
