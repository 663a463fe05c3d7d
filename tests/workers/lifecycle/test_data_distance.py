"""What a node's cache is worth to a gang, in seconds of fetching; what is not known says nothing."""

import pytest

from dsec_blocks.ledger import CachedBundle, Inventory
from dsec_blocks.ledger.inventories import STALE_SECONDS
from dsec_blocks.model.content_sketch import sketch_of
from dsec_blocks.model.devices import Node
from dsec_workers.lifecycle.data_distance import ASSUMED_BANDWIDTH_BYTES_PER_S, DataDistance, NodeSeconds

NOW = 10_000.0
MB = 10**6
LLAMA, CIFAR = "s3://models/llama", "file:///data/cifar"
NODES = tuple(Node(name=name) for name in ("n1", "n2", "n3", "slow"))


def holds(address: str, resident_mb: int, total_mb: int) -> CachedBundle:
    return CachedBundle(address=address, digest="d", bytes_total=total_mb * MB, bytes_resident=resident_mb * MB)


def distance(*told: tuple[str, list[CachedBundle], float | None], age: float = 0.0) -> DataDistance:
    """By node: its bundles and its bandwidth in MB/s."""
    inventories = {
        name: Inventory(
            node=name,
            at=NOW - age,
            bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * MB,
            bundles=tuple(bundles),
        )
        for name, bundles, bandwidth in told
    }
    return DataDistance(inventories, nodes=NODES, now=NOW)


@pytest.mark.parametrize(
    ("case", "told", "inputs", "saved"),
    [
        ("no inputs", [("n1", [holds(LLAMA, 4000, 4000)], 100)], [], {}),
        ("inputs that nobody holds", [("n1", [holds(LLAMA, 4000, 4000)], 100)], [CIFAR], {}),
        ("all of it on one node", [("n1", [holds(LLAMA, 4000, 4000)], 100), ("n2", [], 100)], [LLAMA], {"n1": 40}),
        ("a part of it", [("n1", [holds(LLAMA, 3100, 4000)], 100)], [LLAMA], {"n1": 31}),
        (
            "two inputs on two nodes",
            [("n1", [holds(LLAMA, 4000, 4000)], 100), ("n2", [holds(CIFAR, 100, 100)], 100)],
            [LLAMA, CIFAR],
            {"n1": 40, "n2": 1},
        ),
        ("the same input twice", [("n1", [holds(LLAMA, 4000, 4000)], 100)], [LLAMA, LLAMA + "/"], {"n1": 40}),
        ("a path as people write it", [("n1", [holds(CIFAR, 1000, 1000)], 100)], ["/data/cifar/"], {"n1": 10}),
        ("no address at all", [("n1", [holds(CIFAR, 1000, 1000)], 100)], ["cifar", "../x"], {}),
        ("nothing measured yet", [("n1", [holds(LLAMA, 1000, 1000)], None)], [LLAMA], {"n1": 8}),
        (
            "a bandwidth that differs by chance",
            [("n1", [holds(LLAMA, 2000, 4000)], 70), ("n2", [], 100), ("n3", [], 130)],
            [LLAMA],
            {"n1": 20},
        ),
        (
            "a node that fetches slowly",
            [("n1", [holds(LLAMA, 4000, 4000)], 100), ("n2", [], 100), ("slow", [], 20)],
            [LLAMA],
            {"n1": 40, "slow": -160},
        ),
        (
            "a slow node that need not fetch",
            [("slow", [holds(LLAMA, 4000, 4000)], 20), ("n1", [], 100), ("n2", [], 100)],
            [LLAMA],
            {"slow": 40},
        ),
        ("some of its files", [("n1", [holds(f"{LLAMA} (include *.bin)", 3600, 3600), holds(LLAMA, 0, 4000)], 100)],
         [LLAMA], {"n1": 36}),
        ("some of its files, and another knows how large it is",
         [("n1", [holds(f"{LLAMA} (include *.bin)", 3600, 3600)], 100), ("n2", [holds(LLAMA, 4000, 4000)], 100)],
         [LLAMA], {"n1": 36, "n2": 40}),
        ("some of its files, and nobody has had all", [("n1", [holds(f"{LLAMA} (exclude *.h5)", 3600, 3600)], 100)],
         [LLAMA], {"n1": 36}),
        ("two parts, which may be the same files",
         [("n1", [holds(f"{LLAMA} (include *.bin)", 2000, 2000), holds(f"{LLAMA} (include *.b*)", 3000, 3000)], 100)],
         [LLAMA], {"n1": 30}),
        ("the files of another bundle", [("n1", [holds(f"{LLAMA}-2 (include *.bin)", 3600, 3600)], 100)], [LLAMA], {}),
        ("what only looks like patterns", [("n1", [holds(f"{LLAMA} (include )", 3600, 3600)], 100)], [LLAMA], {}),
        ("less than a second", [("n1", [holds(LLAMA, 20, 4000)], 100)], [LLAMA], {}),
        ("a node of another pool", [("other", [holds(LLAMA, 4000, 4000)], 100), ("n1", [], 100)], [LLAMA], {}),
        ("an empty bundle", [("n1", [holds(LLAMA, 0, 0)], 100)], [LLAMA], {}),
    ],
)  # fmt: skip
def test_seconds_saved(case: str, told: list, inputs: list[str], saved: dict[str, float]) -> None:
    assert dict(distance(*told).seconds_saved(inputs)) == saved


def test_what_is_assumed_is_a_gigabit() -> None:
    assert distance().typical_bytes_per_s == ASSUMED_BANDWIDTH_BYTES_PER_S


def test_an_inventory_that_nobody_confirms_says_nothing() -> None:
    told = ("n1", [holds(LLAMA, 4000, 4000)], 100.0)
    assert dict(distance(told, age=STALE_SECONDS).seconds_saved([LLAMA])) == {"n1": 40.0}
    assert distance(told, age=STALE_SECONDS + 1).seconds_saved([LLAMA]) == ()
    assert distance(told, age=STALE_SECONDS + 1).of([LLAMA]) == ()


def test_the_node_that_saves_most_is_named_first() -> None:
    found = distance(
        ("n1", [holds(LLAMA, 1000, 4000)], 100), ("n2", [holds(LLAMA, 3000, 4000)], 100), ("n3", [], 100)
    ).of([LLAMA])
    assert [each.node for each in found] == ["n2", "n1"]


def test_it_is_said_in_words() -> None:
    found = distance(
        ("n1", [CachedBundle(address=LLAMA, digest="d", bytes_total=4 << 30, bytes_resident=3328 << 20)], 100),
        ("n2", [], 100), ("n3", [], 100), ("slow", [], 10),
    ).of([LLAMA])  # fmt: skip
    assert [each.describe() for each in found] == [
        "3.25 of 4 GiB on n1, saves 35 s there",
        "0 B of 4 GiB on slow, costs 6 min there",
    ]


def test_of_a_bundle_that_nobody_has_had_whole_it_is_not_said_how_large_it_is() -> None:
    """It was "1.4 of 1.4 GiB"; its other files were on no node."""
    part = CachedBundle(address=f"{LLAMA} (include *.bin)", digest="d", bytes_total=3 << 30, bytes_resident=3 << 30)
    [found] = distance(("n1", [part], 100), ("n2", [], 100)).of([LLAMA])
    assert found.describe() == "3 GiB of it on n1, saves 32 s there"


def test_what_the_chosen_nodes_have_is_kept_with_the_decision() -> None:
    data = distance(("n1", [holds(LLAMA, 4000, 4000)], 100), ("n2", [], 100))
    assert data.on([LLAMA], ["n2", "n1"]) == [
        {"node": "n1", "bytes_resident": 4000 * MB, "bytes_total": 4000 * MB, "seconds_saved": 40.0}
    ]
    assert data.on([LLAMA], ["n2"]) == []


def test_gangs_with_the_same_inputs_share_one_answer() -> None:
    data = distance(("n1", [holds(LLAMA, 4000, 4000)], 100))
    assert data.seconds_saved([LLAMA]) is data.seconds_saved((LLAMA,))
    assert data.seconds_saved([LLAMA]) == (("n1", 40.0),)


def test_shared_pairs_are_found_like_any_tuple() -> None:
    pairs = NodeSeconds([("n1", 40.0)])
    assert {pairs: 1}[(("n1", 40.0),)] == 1
    assert hash(pairs) == hash(pairs) == hash((("n1", 40.0),))


def content(*blobs: str, here: str | None = None, at: float, address: str = LLAMA) -> CachedBundle:
    """An address whose blobs have 1 GB each, seen at the origin `at`; of these the node has those in `here`."""
    held = blobs if here is None else tuple(here)
    return CachedBundle(
        address=address,
        digest="".join(blobs),
        bytes_total=len(blobs) * 1000 * MB,
        bytes_resident=len(held) * 1000 * MB,
        checked_at=at,
        sketch=sketch_of(dict.fromkeys(blobs, 1000 * MB), is_here=lambda blob: blob in held),
    )


PART = f"{LLAMA} (include *.bin)"


@pytest.mark.parametrize(
    ("case", "told", "saved"),
    [
        ("other weights", {"n1": [content(*"abcd", at=1)], "n2": [content(*"wxyz", at=2)]}, {"n2": 40}),
        ("one file is new", {"n1": [content(*"abcd", at=1)], "n2": [content(*"abcx", at=2)]}, {"n1": 30, "n2": 40}),
        ("one more file", {"n1": [content(*"abc", at=1)], "n2": [content(*"abcd", at=2)]}, {"n1": 30, "n2": 40}),
        ("many files less", {"n1": [content(*"abcd", at=1)], "n2": [content(*"a", at=2)]}, {"n1": 10, "n2": 10}),
        ("the old was evicted but for a file that another bundle has",
         {"n1": [content(*"abcd", here="a", at=1)], "n2": [content(*"abcx", at=2)]}, {"n1": 10, "n2": 40}),
        ("the new was evicted, and is known all the same",
         {"n1": [content(*"abcd", at=1)], "n2": [content(*"abxy", here="", at=2)]}, {"n1": 20}),
        ("the origin went back to the old",
         {"n1": [content(*"abcd", at=3)], "n2": [content(*"wxyz", at=2)]}, {"n1": 40}),
        ("both have the same, looked at on different days",
         {"n1": [content(*"abcd", at=1)], "n2": [content(*"abcd", at=2)]}, {"n1": 40, "n2": 40}),
        ("some of the files of the old",
         {"n1": [content(*"abc", at=1, address=PART)], "n2": [content(*"axyz", at=2)]}, {"n1": 10, "n2": 40}),
        ("nobody says when", {"n1": [holds(LLAMA, 4000, 4000)], "n2": [content(*"wxyz", at=2)]}, {"n1": 40, "n2": 40}),
    ],
)  # fmt: skip
def test_a_node_with_the_old_content_of_an_address_has_what_the_new_shares_with_it(
    case: str, told: dict[str, list[CachedBundle]], saved: dict[str, float]
) -> None:
    """It weighed as much as the node that had the new."""
    data = distance(*((name, bundles, 100.0) for name, bundles in told.items()))
    assert dict(data.seconds_saved([LLAMA])) == saved
