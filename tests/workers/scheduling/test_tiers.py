"""Which part of a card a request may be given when it leaves that open."""

import pytest

from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import GangRequest, Sharing, parse_request, parse_share
from dsec_workers.scheduling.tiers import tiers
from tests.workers.scheduling.world import NOW, cluster, decide, evicted, node, running, waiting

GIB = 2**30
WHOLE, SLICE, TIME = Sharing.WHOLE, Sharing.SLICE, Sharing.TIME_SLICE


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        pytest.param({}, (WHOLE,), id="without a memory bound nobody knows that a slice would do"),
        pytest.param({"gpu_memory_bytes": 20 * GIB}, (WHOLE,), id="a quarter of the card is not less than a quarter"),
        pytest.param({"gpu_memory_bytes": 19 * GIB}, (WHOLE, SLICE, TIME), id="a small one, whole cards first"),
        pytest.param({"gpu_memory_bytes": GIB, "nodes": 2}, (WHOLE,), id="a gang of several stays on whole cards"),
    ],
)
def test_tiers_in_the_order_they_are_tried(asked, gets):
    assert tiers(GangRequest(devices_per_node=1, **asked), 80 * GIB) == gets


def parts(*profiles, name="n"):
    """A node with devices of these profiles ("": a whole card) of cards of 80 GiB, `NAME/0`…"""
    sizes = {"": 80, "1/4": 20, "1/8": 10}
    devices = [
        Device(uuid=f"{name}/{i}", node=name, index=i, model="H100", profile=profile,
               memory_bytes=sizes.get(profile, 10 * int(profile[:1] or 0) if "g." in profile else 0) * GIB)
        for i, profile in enumerate(profiles)
    ]  # fmt: skip
    return Node(name=name, devices=tuple(devices))


def given_to(snapshot, *queue, **more):
    return {a.run_id: a.placement.devices[0] for a in decide(snapshot, *queue, **more).admits}


def small(run_id="w", memory=8, **more):
    return waiting(run_id, "1", gpu_memory_bytes=memory * GIB, **more)


def test_a_small_request_is_given_a_whole_card_then_a_slice_then_a_part_of_a_cards_time():
    queue = [small(f"w{i}", waited=9 - i) for i in range(4)]
    assert given_to(cluster([parts("1/8", "1g.10gb", "")]), *queue) == {"w0": "n/2", "w1": "n/1", "w2": "n/0"}


@pytest.mark.parametrize(
    ("memory", "more", "gets"),
    [
        (8, {}, {"n/0"}),
        (20, {}, set()),
        (15, {}, set()),
        (8, {"sharing": WHOLE}, set()),
        (8, {"gpu_model": "A100"}, set()),
    ],
    ids=["small", "a quarter of the card", "more than the slice has", "whole by name", "another model"],
)
def test_who_needs_a_quarter_of_the_card_or_more_or_says_whole_waits_beside_a_free_slice(memory, more, gets):
    snapshot = cluster([parts("1g.10gb", ""), node("a", 1, model="A100")], [running("r", "n/1"), running("s", "a/0")])
    assert set(given_to(snapshot, small(memory=memory, **more)).values()) == gets


def test_whoever_names_its_share_gets_that_share_though_a_whole_card_is_free():
    snapshot = cluster([parts("1g.10gb", "1g.10gb+me", "")])
    queue = [small("plain", share="1g.10gb"), small("media", share="1g.10gb+me", waited=1), small("open", waited=0.5)]
    assert given_to(snapshot, *queue) == {"plain": "n/0", "media": "n/1", "open": "n/2"}


def test_a_small_request_waits_for_whichever_is_free_first_and_evicts_from_any():
    held = [running("card", "n/1", ran=0, max_runtime_seconds=7200.0), running("part", "n/0", ran=0, share="1g.10gb",
            max_runtime_seconds=600.0)]  # fmt: skip
    snapshot = cluster([parts("1g.10gb", "")], held)
    (shadow,) = decide(snapshot, small()).shadows
    assert (shadow.start, shadow.devices) == (NOW + 600.0, ("n/0",))
    urgent = decide(snapshot, small("urgent", priority=9))
    assert len(evicted(urgent)["urgent"]) == 1


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
