"""Which part of a card a request may be given when it leaves that open."""

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import GangRequest, Sharing, parse_request, parse_share
from dsec_workers.scheduling.tiers import tiers

GIB = 2**30
WHOLE, SLICE, TIME = Sharing.WHOLE, Sharing.SLICE, Sharing.TIME_SLICE


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        pytest.param({}, (WHOLE,), id="without a memory bound nobody knows that a slice would do"),
        pytest.param({"gpu_memory_bytes": 20 * GIB}, (WHOLE,), id="a quarter of the card is not less than a quarter"),
        pytest.param({"gpu_memory_bytes": 19 * GIB}, (WHOLE, SLICE, TIME), id="a small one, whole cards first"),
        pytest.param({"gpu_memory_bytes": GIB, "nodes": 2}, (WHOLE,), id="a gang of several stays on whole cards"),
        pytest.param({"gpu_memory_bytes": GIB, "sharing": WHOLE}, (WHOLE,), id="whole means whole"),
        pytest.param({"sharing": TIME}, (TIME,), id="who names a share gets it"),
        pytest.param({"share": "3g.40gb"}, (SLICE,), id="and nothing else"),
    ],
)
def test_tiers_in_the_order_they_are_tried(asked, gets):
    assert tiers(GangRequest(devices_per_node=1, **asked), 80 * GIB, slices=True, time_slices=True) == gets


def test_a_tier_that_the_cluster_cannot_carry_out_is_left_out():
    small = GangRequest(devices_per_node=1, gpu_memory_bytes=GIB)
    assert tiers(small, 80 * GIB, slices=False, time_slices=False) == (WHOLE,)
    named = GangRequest(devices_per_node=1, sharing=SLICE)
    assert tiers(named, 80 * GIB, slices=False, time_slices=True) == ()


@pytest.mark.parametrize(
    ("text", "milli"),
    [("0.5", 500), ("50%", 500), ("1/4", 250), ("1", 1000), ("1g.10gb", 142), ("3g.40gb", 428), ("7g.80gb", 1000)],
)
def test_a_share_is_written_as_a_part_or_a_profile(text, milli):
    assert parse_share(text) == milli


@pytest.mark.parametrize("text", ["0", "1.5", "-0.5", "half", "1/0", "8g.80gb", "%", ""])
def test_what_is_no_part_of_a_card_is_refused(text):
    with pytest.raises(InvalidRequest, match=r"share: .* is no part of a card"):
        parse_share(text)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sharing": "slice"}, "sharing: slice needs to know which part; write share: 1g.10gb"),
        ({"sharing": "time-slice"}, "sharing: time-slice needs to know which part; write share: 1/4"),
        ({"sharing": "whole", "share": "0.5"}, "share: 0.5 of a card, but sharing is whole"),
        ({"sharing": "slice", "share": "0.5"}, "share: 0.5 is no slice; write a profile such as 1g.10gb"),
        ({"sharing": "time-slice", "share": "1g.10gb"}, "share: 1g.10gb is a slice, but sharing is time-slice"),
        ({"share": "1/2", "devices_per_node": 0}, "share: 1/2 of a card, but devices_per_node is 0"),
    ],
)
def test_a_part_that_says_two_things_or_too_little_is_refused_with_what_to_write(asked, message):
    with pytest.raises(InvalidRequest, match=message):
        parse_request({"devices_per_node": 1, **asked})


def test_a_profile_is_taken_in_any_case():
    assert parse_request({"devices_per_node": 1, "sharing": "slice", "share": " 1G.10GB "}).share == "1g.10gb"


def test_several_models_processors_and_memory_are_read_from_the_form():
    request = parse_request({"devices_per_node": 2, "gpu_model": ["H100", "H200"], "cpus": "8", "memory": "64GiB"})
    assert request.gpu_models == ("H100", "H200") and request.cpus == 8.0 and request.memory_bytes == 64 * GIB
    assert request.describe() == "2 H100 or H200"
    assert GangRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"cpus": 0}, "cpus: 0 is not a number"), ({"cpus": True}, "cpus: True is not a number"),
     ({"cpus": "many"}, "cpus: 'many' is not a number"), ({"cpus": float("nan")}, "cpus: nan is not a number"),
     ({"gpu_model": "H100|", "devices_per_node": 1}, "has an empty name")],
)  # fmt: skip
def test_bad_sizes_are_refused_with_the_field(asked, message):
    with pytest.raises(InvalidRequest, match=message):
        parse_request(asked)
