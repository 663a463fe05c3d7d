"""Cluster specifications, overheads and estimates, checked at the edge."""

from pathlib import Path

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.estimates import Estimates
from dsec_workers.simulation.measures import jain
from dsec_workers.simulation.overheads import Overheads


def test_a_cluster_in_a_word() -> None:
    nodes = parse_cluster("58x8")
    assert (len(nodes), nodes[0].name, nodes[-1].name) == (58, "node-00", "node-57")
    assert {len(node.devices) for node in nodes} == {8}
    assert [d.model for n in parse_cluster("1x2@H100,1x1@A100") for d in n.devices] == ["H100", "H100", "A100"]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_cluster_in_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cluster{suffix}"
    path.write_text('[{"count": 2, "gpus": 4, "model": "H100", "memory": "80GB", "topology": ["z", "r"], "name": "a"}]')
    nodes = parse_cluster(str(path))
    assert [node.name for node in nodes] == ["a-0", "a-1"]
    assert nodes[0].topology == ("z", "r")
    assert nodes[0].devices[3].memory_bytes == 80 * 10**9
    assert nodes[0].devices[3].nvlink_domain == "a-0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "holds no list of node groups"),
        ("[{count: 2}]", "group 1: gpus is None; a whole number from 1 to 64 is needed"),
        ("[{gpus: 8, colour: red}]", "group 1: 'colour' is unknown; there are count, gpus"),
        ("[{gpus: 8, memory: 80}]", "memory"),
        ("[{gpus: 8, topology: rack}]", "topology is 'rack'; give a list of names"),
        ("[{gpus: 8, nvlink: all}]", "nvlink is 'all'; give node or none"),
        ("[{gpus: 1, name: a}, {gpus: 1, name: a}]", "there is a node a-0 already"),
        ("[8]", "group 1: 8 is no mapping"),
        ("{", "is neither YAML nor JSON"),
    ],
)
def test_a_bad_cluster_file_is_refused_with_what_would_do(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as error:
        parse_cluster(str(path))
    assert says in str(error.value)


@pytest.mark.parametrize("spec", ["", "58", "58x", "x8", "58*8", "58x8 H100"])
def test_a_cluster_that_is_neither_word_nor_file_is_refused(spec: str) -> None:
    with pytest.raises(InvalidRequest, match="neither NODESxGPUS such as 58x8"):
        parse_cluster(spec)


@pytest.mark.parametrize("fields", [{"checkpoint_seconds": -1.0}, {"restart_seconds": float("inf")},
                                    {"interval_seconds": 0.0}])  # fmt: skip
def test_overheads_are_durations(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(fields))):
        Overheads(**fields)  # type: ignore[arg-type]


def test_work_behind_an_attempt_and_its_wall_time_agree() -> None:
    cost = Overheads(checkpoint_seconds=10.0, restart_seconds=30.0, interval_seconds=100.0)
    assert cost.wall(250.0, attempt=1) == 270.0
    assert cost.wall(250.0, attempt=2) == 300.0
    for attempt in (1, 2):
        assert cost.done(cost.wall(250.0, attempt=attempt), attempt=attempt) == 250.0
    assert cost.done(105.0, attempt=1) == 100.0
    assert cost.kept(250.0, failed=True) == 200.0


def test_estimates_come_from_jobs_that_have_ended_the_most_alike_first() -> None:
    found = Estimates(default_seconds=7.0)
    assert found.seconds("a", 1) == 7.0
    for seconds in range(1, 11):
        found.ended("a", 1, float(seconds))
        found.ended("a", 8, 1000.0)
    assert found.seconds("a", 1) == 5.5
    assert found.seconds("a", 8) == 1000.0
    assert found.seconds("a", 4) > 5.5  # no run of that size: all of the team's
    assert found.seconds("b", 1) == found.seconds("a", 4)
    assert found.remaining("a", 1, elapsed=6.0) == pytest.approx(5.0)


def test_jains_index_is_one_when_all_are_equal_and_a_share_when_one_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
