"""The placement score: what it prefers, that it is the same however it is worked out, and the published experiment."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.packing.pods import NODES, arrivals, read_cluster, read_pods
from benchmarks.placement import data_folder, place_list, pod_lists
from dsec_workers.scheduling.fleet import DeviceClass, build_fleet
from dsec_workers.scheduling.fragmentation import Headroom, Weights, outlook
from dsec_workers.scheduling.prospects import prospects
from dsec_workers.scheduling.scoreboard import Scoreboard
from dsec_workers.scheduling.shapes import WHOLE, MemberShape, Workload, typical, whole_nodes, with_expected
from tests.workers.scheduling.world import admitted, cluster, decide, node, running, waiting

CLASSES = (DeviceClass(model="A", memory_bytes=0), DeviceClass(model="B", memory_bytes=0))
EXPECTED = Path(__file__).parents[3] / "benchmarks" / "expected" / "placement.json"


def room(*nodes: tuple[int, list[int]], kind: int = 0) -> Headroom:
    """(CPUs, free thousandths of each card) of every node."""
    width = max(len(cards) for _, cards in nodes)
    return Headroom(
        cards=np.array([cards + [0] * (width - len(cards)) for _, cards in nodes]),
        cpu_milli=np.array([cpu * 1000.0 for cpu, _ in nodes]),
        memory_mib=np.full(len(nodes), np.inf),
        kind=np.full(len(nodes), kind),
    )


def board(free: Headroom, *seen: tuple[MemberShape, int]) -> Scoreboard:
    workload = Workload()
    for shape, times in seen:
        for _ in range(times):
            workload.observe(shape)
    return Scoreboard(free, CLASSES, workload)


SMALL, LARGE = MemberShape(1, cpu_milli=4000), MemberShape(8, cpu_milli=64000)


@pytest.mark.parametrize(
    ("free", "asks", "row"),
    [
        pytest.param(room((96, [1000] * 8), (96, [1000] * 3)), SMALL, 1, id="a broken node before a whole one"),
        pytest.param(room((96, [1000, 500]), (96, [1000, 0])), MemberShape(1, 500), 0, id="a broken card first"),
        pytest.param(room((8, [1000] * 2), (40, [1000] * 2)), MemberShape(1, cpu_milli=1000), 0,
                     id="a light one where processors are short"),
        pytest.param(room((96, [1000] * 8), (96, [1000] * 4)), MemberShape(0, cpu_milli=40000), 1,
                     id="one without cards away from the node that a large one needs"),
    ],
)  # fmt: skip
def test_the_node_that_is_missed_least_is_chosen(free, asks, row):
    found = board(free, (SMALL, 20), (LARGE, 5), (MemberShape(1, 500), 10)).best(asks)
    assert found is not None and found[0] == row


def test_a_card_whose_processors_are_gone_holds_nobody():
    shapes = typical([(SMALL, 1.0)], CLASSES)
    assert outlook(room((3, [1000] * 8), (8, [1000] * 8)), shapes).holds.tolist() == [[0.0], [2.0]]
    assert outlook(room((3, [1000] * 8)), shapes).stranded.tolist() == [[8000.0]]


def test_room_for_a_shape_that_is_scarce_costs_more():
    asks = (SMALL, 50), (LARGE, 1)
    plenty = board(room(*[(96, [1000] * 8)] * 20, (96, [1000] * 4)), *asks)
    scarce = board(room((96, [1000] * 8), *[(96, [1000] * 4)] * 20), *asks)
    large = plenty.typical.shapes.index(LARGE)
    for one, other in ((plenty, scarce),):
        ratio = [b.totals[large] for b in (one, other)]
        assert ratio == [20.0, 1.0]
    assert scarce.best(SMALL) != (0, -1)


def test_who_takes_a_node_whole_finds_its_processors_though_none_ever_came():
    """Before, all nodes that could hold one had lost processors to small members by then, and it never started."""
    free, light = room((96, [1000] * 8), (104, [1000] * 2)), MemberShape(1, cpu_milli=16_000)
    hosts = free.cpu_milli.tolist(), free.memory_mib.tolist()
    scores = Scoreboard(free, CLASSES, Workload(whole_nodes([8, 2], *hosts)))
    for _ in range(2):
        scores.workload.observe(light)
        row, card = scores.best(light)
        _take(free, light, row, card)
        scores.changed(row)
    assert free.cpu_milli.tolist() == [96_000.0, 72_000.0]
    assert scores.best(MemberShape(8, cpu_milli=80_000)) == (0, -1)


def test_plan_expects_it_too_where_nodes_declare_processors_and_somebody_asks_for_them():
    nodes = [replace(node("a", 4), cpus=96.0), replace(node("b", 8), cpus=64.0)]
    snapshot = cluster(nodes, [running("first", "b/0", cpus=16.0)])
    plan = decide(snapshot, waiting("light", "1", cpus=16.0))
    assert admitted(plan) == {"light": ["b"]}, "without it the node with least left, which is whole"
    assert MemberShape(8, cpu_milli=57_600) in prospects(snapshot.fleet, {SMALL: 1.0}, Weights()).typical.shapes
    assert prospects(snapshot.fleet, {MemberShape(1): 1.0}, Weights()).typical.shapes == (MemberShape(1),)


def test_a_kind_of_node_of_which_nothing_is_known_is_not_expected_to_be_taken_whole():
    found = whole_nodes([8, 8, 4, 1], [float("inf"), 64_000.0, float("inf"), 8000.0], [float("inf")] * 4)
    assert found == {MemberShape(8, cpu_milli=57_600)}


def test_a_few_who_came_weigh_more_than_what_never_did():
    """Before, two gangs that waited counted less than two whole nodes, and took their places by what nobody asked."""
    unseen = MemberShape(8, cpu_milli=57_600)
    assert with_expected({SMALL: 2.0}, [unseen]) == {SMALL: 2.0, unseen: 0.02}
    assert with_expected({SMALL: 500.0}, [unseen, SMALL]) == {SMALL: 501.0, unseen: 1.0}
    assert with_expected({}, [unseen]) == {unseen: 0.0}


def test_the_histogram_forgets_what_no_longer_arrives():
    workload = Workload(half_life=100)
    for _ in range(1000):
        workload.observe(LARGE)
    for _ in range(2000):
        workload.observe(SMALL)
    assert [shape for shape, _ in workload.typical()] == [SMALL]
    assert workload.typical()[0][1] == pytest.approx(1 / (1 - 2**-0.01), rel=1e-3)


cards = st.lists(st.sampled_from([0, 110, 250, 500, 750, 1000]), min_size=4, max_size=4)
hosts = st.tuples(st.integers(0, 64), cards)
shapes = st.builds(
    MemberShape,
    devices=st.just(1),
    share=st.sampled_from([100, 250, 500, 810, WHOLE]),
    cpu_milli=st.sampled_from([0, 1000, 8000, 16000]),
) | st.builds(MemberShape, devices=st.sampled_from([0, 2, 4]), cpu_milli=st.sampled_from([0, 4000, 32000]))  # fmt: skip


def _fresh(free: Headroom, source: Scoreboard) -> Scoreboard:
    return Scoreboard(free, CLASSES, source.workload)


@settings(max_examples=150, deadline=None)
@given(nodes=st.lists(hosts, min_size=1, max_size=8), asked=st.lists(shapes, min_size=1, max_size=12))
@example(
    nodes=[(8, [0, 0, 250, 250]), (8, [0, 110, 1000, 1000])],
    asked=[
        MemberShape(devices=1, share=100, cpu_milli=0), MemberShape(devices=2, cpu_milli=0),
        MemberShape(devices=1, share=100, cpu_milli=0), MemberShape(devices=1, share=100, cpu_milli=8000),
    ],
)  # fmt: skip
def test_scores_kept_up_to_date_choose_as_scores_made_anew(nodes, asked):
    free = room(*nodes)
    workload = Workload()
    for shape in asked:
        workload.observe(shape)
    kept = Scoreboard(free, CLASSES, workload)
    for shape in asked:
        found = kept.best(shape)
        anew = Scoreboard(free, CLASSES, workload)
        anew.capacity = kept.capacity  # what is scarce is measured by all cards there are, not by those still free
        assert anew.best(shape) == found == kept.best(shape)
        np.testing.assert_allclose(kept.totals, anew.totals, atol=1e-4)
        if found is None:
            assert not _feasible(free, shape).any()
            continue
        row, card = found
        assert _feasible(free, shape)[row]
        _take(free, shape, row, card)
        kept.changed(row)


def _feasible(free: Headroom, shape: MemberShape) -> np.ndarray:
    enough = ((free.cards >= shape.share).sum(axis=1) >= shape.devices) if shape.devices else True
    return enough & (free.cpu_milli >= shape.cpu_milli)


def _take(free: Headroom, shape: MemberShape, row: int, card: int) -> None:
    free.cpu_milli[row] -= shape.cpu_milli
    if card >= 0:
        free.cards[row, card] -= shape.share
    elif shape.devices:
        free.cards[row, np.flatnonzero(free.cards[row] == WHOLE)[: shape.devices]] = 0


@settings(max_examples=100, deadline=None)
@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=10), devices=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_table_of_whole_cards_says_what_the_score_says_node_by_node(free, devices, seed):
    dice = np.random.default_rng(seed)
    demand = {MemberShape(size): float(dice.integers(1, 50)) for size in dice.choice([1, 2, 3, 4, 8], 3)}
    fleet = build_fleet([node(f"n{i}", 8) for i in range(len(free))])
    expected = prospects(fleet, demand, Weights())
    assert expected is not None
    counts = np.array(free)
    costs = expected.costs(counts, devices, cpu_milli=0, memory_mib=0, hosts=None)
    slots = np.where(np.arange(8)[None, :] < counts[:, None], WHOLE, 0)
    plenty = np.full(len(free), np.inf)
    workload = Workload()
    workload.weights = dict(demand)
    scores = Scoreboard(Headroom(slots, plenty, plenty, np.zeros(len(free), np.int64)), fleet.classes, workload)
    scores.capacity = float(fleet.size)
    found = scores.best(MemberShape(devices))
    able = np.flatnonzero(counts >= devices)
    assert (found is None) == (not len(able))
    if found is not None:
        assert costs[found[0]] == pytest.approx(costs[able].min(), abs=2e-4)


@pytest.mark.slow
def test_the_published_experiment_comes_out_as_recorded():
    data = data_folder()
    nodes = data / "alibaba-gpu-v2023" / NODES
    if not nodes.exists():
        pytest.skip(f"no {NODES} under {data}; point DSEC_DATA to the folder that holds alibaba-gpu-v2023")
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for entry in expected["runs"]:
        runs = place_list(entry["list"], pod_lists(data)[entry["list"]], nodes, entry["seed"], list(entry["allocated"]))
        for run in runs:
            assert run.allocated == pytest.approx(entry["allocated"][run.method], abs=expected["tolerance"])


def test_arrivals_are_the_list_and_then_pods_drawn_from_it_up_to_130_percent():
    data = data_folder()
    if not (data / "alibaba-gpu-v2023" / NODES).exists():
        pytest.skip(f"no {NODES} under {data}; point DSEC_DATA to the folder that holds alibaba-gpu-v2023")
    cluster = read_cluster(data / "alibaba-gpu-v2023" / NODES)
    pods = read_pods(pod_lists(data)["default"])
    sequence = arrivals(pods, cluster.capacity, 42)
    assert len(cluster.names) == 1213 and cluster.capacity == 6_212_000 and len(pods) == 8152
    assert sorted(sequence[: len(pods)]) == sorted(pods) and set(sequence) == set(pods)
    asked = sum(pod.thousandths for pod in sequence)
    assert 1.298 * cluster.capacity < asked <= 1.3 * cluster.capacity
    assert sequence == arrivals(pods, cluster.capacity, 42) != arrivals(pods, cluster.capacity, 43)
