"""Where gangs go: by shape, tightest domain first, whole domains kept whole."""

import pytest

from dsec_blocks.model.requests import Topology
from tests.workers.scheduling.world import GIB, admitted, cluster, decide, node, running, texts, waiting, why

RACKS = [node(f"{r}{i}", 4, domain=r, rack=r) for r in ("ra", "rb") for i in range(4)]


def test_t45_eight_free_devices_as_two_halves_do_not_admit_a_gang_of_eight_on_one_node():
    snapshot = cluster([node("n1", 8), node("n2", 8)], [running("r1", "n1/0-3"), running("r2", "n2/0-3")])
    result = decide(snapshot, waiting("big", "8"))
    assert admitted(result) == {}
    assert why(result) == {"big": "fragmented"}
    assert texts(result)["big"] == ("needs 8 GPUs on one node; 8 free but not in this shape: 4 free on the best node")


def test_t46_small_gangs_fill_used_racks_and_leave_whole_racks_whole():
    snapshot = cluster(RACKS, [running("r", "rb0/0")])
    result = decide(snapshot, *[waiting(f"s{i:02}", "1") for i in range(15)])
    assert {name[:2] for names in admitted(result).values() for name in names} == {"rb"}


def test_t46_an_exactly_fitting_node_in_an_unused_rack_loses_to_one_in_a_used_rack():
    snapshot = cluster(RACKS, [running("r", "rb0/0-3")])
    assert admitted(decide(snapshot, waiting("four", "4"))) == {"four": ["rb1"]}


def test_t47_one_domain_is_used_when_one_fits_even_if_another_node_would_leave_less_over():
    snapshot = cluster(RACKS, [running("r1", "ra0/0-1"), running("r2", "rb0/0-1"), running("r3", "rb1/0-3")])
    # Two members of 2: ra0 and rb0 fit exactly, but lie in different racks.
    nodes = admitted(decide(snapshot, waiting("pair", "2x2")))["pair"]
    assert len({name[:2] for name in nodes}) == 1


def test_the_smallest_domain_that_holds_the_gang_is_chosen():
    snapshot = cluster(RACKS, [running("r", "ra0/0-3")])
    assert {name[:2] for name in admitted(decide(snapshot, waiting("three", "3x4")))["three"]} == {"ra"}


def test_t32_a_gang_bound_to_one_nvlink_domain_waits_until_the_whole_gang_fits_in_one():
    snapshot = cluster(RACKS, [running("r1", "ra0/0"), running("r2", "rb0/0")])
    result = decide(snapshot, waiting("bound", "4x4", gpu_model="H100", topology=Topology.DOMAIN))
    assert admitted(result) == {}
    assert texts(result)["bound"] == (
        "needs 4×4 H100 in one NVLink domain; 30 free but not in this shape: 15 free in the best domain"
    )
    assert len(admitted(decide(snapshot, waiting("three", "3x4", topology=Topology.DOMAIN)))["three"]) == 3


def test_a_member_bound_to_one_domain_does_not_straddle_two_islands_of_its_node():
    snapshot = cluster([node("n1", 8, islands=2)], [running("r", "n1/0")])
    assert why(decide(snapshot, waiting("m", "6", topology=Topology.NODE_DOMAIN))) == {"m": "never-fits"}
    assert admitted(decide(snapshot, waiting("m", "6"))) == {"m": ["n1"]}
    placement = decide(snapshot, waiting("m", "4", topology=Topology.NODE_DOMAIN)).admits[0].placement
    assert placement.devices == ("n1/4", "n1/5", "n1/6", "n1/7")


def test_devices_without_nvlink_never_make_a_domain():
    snapshot = cluster([node("n1", 4, domain="")])
    assert why(decide(snapshot, waiting("d", "2", topology=Topology.DOMAIN))) == {"d": "never-fits"}
    assert admitted(decide(snapshot, waiting("p", "2"))) == {"p": ["n1"]}


def test_members_sit_on_different_nodes():
    assert why(decide(cluster([node("n1", 8)]), waiting("two", "2x4"))) == {"two": "never-fits"}


@pytest.mark.parametrize(
    ("wants", "where"),
    [
        pytest.param({"gpu_model": "A100"}, ["a"], id="a model is honoured"),
        pytest.param({"gpu_model": "a100"}, ["a"], id="whatever its case"),
        pytest.param({"gpu_memory_bytes": 60 * GIB}, ["h"], id="memory is a lower bound"),
    ],
)
def test_constraints_choose_the_node(wants, where):
    snapshot = cluster(
        [node("a", 4, model="A100", memory=40 * GIB), node("h", 4), node("z", 4, model="L4", memory=GIB)]
    )
    assert admitted(decide(snapshot, waiting("g", "4", **wants))) == {"g": where}


def test_frozen_devices_and_cordoned_nodes_take_nothing():
    snapshot = cluster([node("n1", 4, frozen=[0]), node("n2", 4, schedulable=False)])
    result = decide(snapshot, waiting("four", "4"), waiting("three", "3"))
    assert admitted(result) == {"three": ["n1"]}
    assert why(result) == {"four": "waits-for-capacity"}


def test_t26_of_two_gangs_that_each_need_everything_one_wins_whole_and_the_other_holds_nothing():
    snapshot = cluster([node(f"n{i}", 4) for i in range(4)])
    result = decide(snapshot, waiting("g1", "4x4"), waiting("g2", "4x4"))
    assert {run: len(nodes) for run, nodes in admitted(result).items()} == {"g1": 4}
    assert why(result) == {"g2": "waits-for-capacity"}


def test_a_gang_without_devices_goes_to_the_nodes_with_the_fewest_members():
    snapshot = cluster([node("n1", 1), node("n2", 1)], [running("r", "n1/0")])
    assert admitted(decide(snapshot, waiting("cpu", "1x0"), waiting("late", "1x0", waited=1))) == {
        "cpu": ["n2"],
        "late": ["n1"],
    }


def test_an_elastic_gang_starts_with_as_many_nodes_as_fit():
    snapshot = cluster([node(f"n{i}", 4) for i in range(4)], [running("r", "n0/0")])
    assert admitted(decide(snapshot, waiting("e", "4x4", min_nodes=2))) == {"e": ["n1", "n2", "n3"]}
    busy = cluster([node(f"n{i}", 4) for i in range(4)], [running("r", "n0/0", "n1/0", "n2/0")])
    assert admitted(decide(busy, waiting("e", "4x4", min_nodes=2))) == {}
