"""Every way to write a gang request wrongly gets one line that names the field and says what would do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import REQUEST_VARIABLES, GangRequest, Kind, Sharing, Topology, parse_request

GI = 1 << 30


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"gpu_memory": "80"}, "gpu_memory: '80' has no unit; write for example '80GiB'"),
        ({"gpu_memory": 80}, "gpu_memory: '80' has no unit; write for example '80GiB'"),
        ({"gpu_memory": "80 GX"}, "gpu_memory: unknown unit 'GX' in '80 GX'; use KiB, MiB, GiB, TiB or KB, MB, GB, TB"),
        ({"gpu_memory": "lots"}, "gpu_memory: 'lots' is not a size; write for example '80GiB'"),
        ({"gpu_memory": "-5GiB"}, "gpu_memory: '-5GiB' is not a size; write for example '80GiB'"),
        ({"gpu_memory": ""}, "gpu_memory: '' is not a size; write for example '80GiB'"),
        ({"gpu_memory": "0GiB"}, "gpu_memory: '0GiB' is no memory at all; leave it out for any card"),
        ({"nodes": 2, "min_nodes": 3}, "min_nodes: 3 is more than nodes (2); lower it or raise nodes"),
        ({"min_nodes": 2}, "min_nodes: 2 is more than nodes (1); lower it or raise nodes"),
        ({"min_nodes": 0}, "min_nodes: 0 is not a whole number from 1 to 4096"),
        ({"nodes": 0}, "nodes: 0 is not a whole number from 1 to 4096"),
        ({"nodes": 5000}, "nodes: 5000 is not a whole number from 1 to 4096"),
        ({"nodes": 1.5}, "nodes: 1.5 is not a whole number from 1 to 4096"),
        ({"nodes": "two"}, "nodes: 'two' is not a whole number from 1 to 4096"),
        ({"nodes": "²"}, "nodes: '²' is not a whole number from 1 to 4096"),
        ({"nodes": "--2"}, "nodes: '--2' is not a whole number from 1 to 4096"),
        ({"nodes": True}, "nodes: True is not a whole number from 1 to 4096"),
        ({"devices_per_node": -1}, "devices_per_node: -1 is not a whole number from 0 to 64"),
        ({"devices_per_node": 65}, "devices_per_node: 65 is not a whole number from 0 to 64"),
        ({"priority": -1}, "priority: -1 is not a whole number from 0 to 1000"),
        ({"priority": 1001}, "priority: 1001 is not a whole number from 0 to 1000"),
        ({"kind": "trainig"}, "kind: 'trainig' is not one of training, inference, batch, interactive"),
        ({"kind": ["training"]}, "kind: ['training'] is not one of training, inference, batch, interactive"),
        ({"sharing": "half"}, "sharing: 'half' is not one of auto, whole, slice, time-slice"),
        ({"topology": "shelf"}, "topology: 'shelf' is not one of preferred, node-domain, domain, "
         "rack, block, zone, spread"),
        ({"preemptible": "yes"}, "preemptible: 'yes' is neither true nor false"),
        ({"grace": "soon"}, "grace: 'soon' is not a duration; write for example '30s', '15min' or '2h'"),
        ({"grace": -1}, "grace: a duration cannot be -1"),
        ({"grace": float("nan")}, "grace: a duration cannot be nan"),
        ({"grace": True}, "grace: True is not a duration; write for example '30s', '15min' or '2h'"),
        ({"max_runtime": "2 fortnights"}, "max_runtime: '2 fortnights' is not a duration; write for example '30s', "
         "'15min' or '2h'"),
        ({"max_runtime": float("inf")}, "max_runtime: a duration cannot be inf"),
        ({"max_runtime": 0}, "max_runtime: 0 leaves no time to run; leave it out for no limit"),
        ({"inputs": "s3://b/k"}, "inputs: 's3://b/k' is not a list of URIs"),
        ({"inputs": [1]}, "inputs: [1] is not a list of URIs"),
        ({"inputs": 5}, "inputs: 5 is not a list of URIs"),
        ({"env": ["A=1"]}, "env: ['A=1'] is not a mapping of names to values"),
        ({"gpu_model": 100, "devices_per_node": 1}, "gpu_model: 100 is not text"),
        ({"image": {}}, "image: {} is not text"),
        ({"gpu_model": "H100"}, "devices_per_node: 0, but gpu_model or gpu_memory is set; ask for at least one device"),
        ({"gpu_memory": "8GB"}, "devices_per_node: 0, but gpu_model or gpu_memory is set; ask for at least one device"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_bad_request_is_refused_in_one_line(variables: dict, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(variables)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_no_variables_make_a_cpu_only_gang() -> None:
    request = parse_request({})
    assert request == GangRequest()
    assert (request.devices, request.describe(), request.evictable) == (0, "CPU only", True)


def test_none_means_the_default_and_other_job_variables_are_ignored() -> None:
    empty = dict.fromkeys(REQUEST_VARIABLES)
    assert parse_request({**empty, "command": "python x.py", "working_dir": 7, "labels": object()}) == GangRequest()


def test_a_whole_request_is_read() -> None:
    request = parse_request(
        {
            "nodes": 4,
            "min_nodes": "2",
            "devices_per_node": "8",
            "gpu_model": "H100",
            "gpu_memory": "80 GiB",
            "sharing": "whole",
            "topology": "domain",
            "priority": 70,
            "kind": "batch",
            "preemptible": False,
            "grace": "2min",
            "max_runtime": "1.5h",
            "inputs": ["s3://b/k"],
            "image": "repo/image:1",
            "env": {"A": 1, "B": None, "C": "x"},
        }
    )
    assert request == GangRequest(
        nodes=4,
        min_nodes=2,
        devices_per_node=8,
        gpu_model="H100",
        gpu_memory_bytes=80 * GI,
        sharing=Sharing.WHOLE,
        topology=Topology.DOMAIN,
        priority=70,
        kind=Kind.BATCH,
        preemptible=False,
        grace_seconds=120.0,
        max_runtime_seconds=5400.0,
        inputs=("s3://b/k",),
        image="repo/image:1",
        env={"A": "1", "C": "x"},
    )
    assert request.devices == 32
    assert not request.evictable


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GangRequest(), "CPU only"),
        (GangRequest(nodes=3), "3 CPU-only members"),
        (GangRequest(devices_per_node=2), "2 GPUs"),
        (GangRequest(nodes=2, devices_per_node=8, gpu_model="H100"), "2×8 H100"),
    ],
)
def test_a_shape_is_described_in_a_few_words(request_: GangRequest, words: str) -> None:
    assert request_.describe() == words


def test_inference_is_never_evictable() -> None:
    assert not GangRequest(kind=Kind.INFERENCE, preemptible=True).evictable


def test_a_request_with_a_field_of_a_newer_version_is_refused() -> None:
    with pytest.raises(TypeError):
        GangRequest.from_json({**GangRequest().to_json(), "teleport": True})


@given(
    st.builds(
        GangRequest,
        nodes=st.integers(1, 64),
        min_nodes=st.none() | st.integers(1, 64),
        devices_per_node=st.integers(0, 8),
        gpu_model=st.none() | st.text(max_size=8),
        gpu_memory_bytes=st.none() | st.integers(1, 1 << 40),
        sharing=st.sampled_from(Sharing),
        topology=st.sampled_from(Topology),
        kind=st.sampled_from(Kind),
        inputs=st.lists(st.text(max_size=8)).map(tuple),
        env=st.dictionaries(st.text(max_size=4), st.text(max_size=4)),
    )
)
def test_a_request_survives_json(request: GangRequest) -> None:
    assert GangRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


@given(st.dictionaries(st.sampled_from(REQUEST_VARIABLES), st.none() | st.booleans() | st.integers() | st.floats()
       | st.text(max_size=6) | st.lists(st.integers() | st.text(max_size=3), max_size=2)
       | st.dictionaries(st.text(max_size=2), st.integers(), max_size=1)))  # fmt: skip
def test_whatever_is_typed_in_gives_a_request_or_one_readable_line(variables: dict) -> None:
    try:
        parse_request(variables)
    except InvalidRequest as refusal:
        field = str(refusal).partition(":")[0]
        assert field in REQUEST_VARIABLES
        assert "\n" not in str(refusal)
