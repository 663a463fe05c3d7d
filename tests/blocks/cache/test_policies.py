"""Eviction policies: against libCacheSim's own counts, and the rules that bundles need."""

import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.eviction import POLICIES, EvictionPolicy, Request, open_policy, replay
from dsec_blocks.cache.eviction.policy import nobody
from dsec_blocks.cache.eviction.s3fifo import S3Fifo

DATA = Path(os.environ.get("DSEC_DATA") or Path(__file__).resolve().parents[3].parent / "shared" / "data")
SMALLEST_MIB, GOLDEN_AT_SMALLEST = 128, {"LRU": 93374, "FIFO": 93403, "S3FIFO": 89307}
"""From libCacheSim's test/test_evictionAlgo.c; the other sizes are compared by `make bench-cache`."""


def filled(policy: EvictionPolicy, *names: str, size_bytes: int = 10) -> EvictionPolicy:
    for name in names:
        policy.miss(name)
        policy.admit(name, size_bytes=size_bytes, refetch_seconds=1.0)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("LRU", POLICIES["lru"]),
        ("FIFO", POLICIES["fifo"]),
        ("S3FIFO", partial(S3Fifo, price_exponent=0.0, refuses_large=True)),
    ],
)
def test_libcachesims_own_miss_counts_come_out_exactly(name: str, make) -> None:  # type: ignore[no-untyped-def]
    import json
    import struct

    folder = DATA / "libcachesim"
    if not folder.is_dir():
        pytest.skip("the public traces are not there: set DSEC_DATA")
    raw = (folder / "cloudPhysicsIO.oracleGeneral.bin").read_bytes()
    trace = [Request(str(key), size) for _, key, size, _ in struct.iter_unpack("<IQIq", raw)]
    told = json.loads((folder / "golden_miss_counts.json").read_text())["algos"][name]
    capacity_bytes = SMALLEST_MIB * 2**20
    tally = replay(trace, make(capacity_bytes), capacity_bytes=capacity_bytes)
    assert tally.misses == told["miss_cnt"][0] == GOLDEN_AT_SMALLEST[name]
    assert tally.requested_bytes - tally.hit_bytes == told["miss_byte"][0]


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidCacheSetting, match="s3-fifo, gdsf, freq-size, lru, fifo"):
        open_policy("random", capacity_bytes=1)


@pytest.mark.parametrize("name", POLICIES)
def test_whoever_is_held_is_spared_by_every_policy(name: str) -> None:
    policy = filled(open_policy(name, capacity_bytes=40), "a", "b", "c")
    held = {"a", "c"}
    assert policy.evict(spared=held.__contains__) == "b"
    assert policy.evict(spared=held.__contains__) is None
    assert set(policy.resident()) == held


@pytest.mark.parametrize("name", POLICIES)
@given(
    events=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["use", "evict", "forget"])), max_size=60)
)
def test_a_policy_that_was_written_down_and_read_again_decides_the_same(
    name: str, events: list[tuple[str, str]]
) -> None:
    sizes = {letter: 3 * number + 1 for number, letter in enumerate("abcdefgh")}
    one, other = open_policy(name, capacity_bytes=40), open_policy(name, capacity_bytes=40)
    for letter, what in events:
        if what == "forget":
            one.forget(letter)
        elif what == "evict":
            one.evict(spared=nobody)
        elif letter in one:
            one.hit(letter)
        else:
            one.miss(letter)
            one.admit(letter, size_bytes=sizes[letter], refetch_seconds=float(sizes[letter]))
    other.restore(one.to_json())
    assert dict(other.resident()) == dict(one.resident())
    while True:
        victim = one.evict(spared=nobody)
        assert other.evict(spared=nobody) == victim
        if victim is None:
            break


def test_lru_evicts_what_was_used_longest_ago_and_fifo_what_came_first() -> None:
    lru = filled(open_policy("lru", capacity_bytes=40), "a", "b", "c")
    lru.hit("a")
    assert lru.evict(spared=nobody) == "b"
    fifo = filled(open_policy("fifo", capacity_bytes=40), "a", "b", "c")
    fifo.hit("a")
    assert fifo.evict(spared=nobody) == "a"


def test_a_one_off_read_does_not_displace_what_is_used_again() -> None:
    policy = filled(open_policy("s3-fifo", capacity_bytes=100), "model")
    for _ in range(3):
        policy.hit("model")
    filled(policy, "data-1", "data-2", "data-3")
    assert [policy.evict(spared=nobody) for _ in range(3)] == ["data-1", "data-2", "data-3"]
    assert "model" in policy


def test_what_is_missed_soon_after_it_left_probation_goes_to_the_main_queue() -> None:
    policy = filled(open_policy("s3-fifo", capacity_bytes=100), "a")
    assert policy.evict(spared=nobody) == "a"
    filled(policy, "a", "b")
    assert policy.evict(spared=nobody) == "b", "b is on probation, a has proved itself"


def test_a_large_bundle_is_on_probation_like_any_other() -> None:
    policy = filled(open_policy("s3-fifo", capacity_bytes=100), "small", size_bytes=5)
    filled(policy, "huge", size_bytes=80)
    assert policy.evict(spared=nobody) == "small"
    assert policy.evict(spared=nobody) == "huge"


def test_a_second_chance_costs_a_large_bundle_more() -> None:
    policy = S3Fifo(200)
    for name, size in (("large", 90), ("small", 10)):
        filled(policy, name, size_bytes=size)
        policy.evict(spared=nobody)
        filled(policy, name, size_bytes=size)  # remembered: into the main queue
    for name in ("large", "small"):
        policy.hit(name)
    assert policy.evict(spared=nobody) == "large"


def test_frequency_times_size_lets_small_bundles_go_first() -> None:
    policy = filled(open_policy("freq-size", capacity_bytes=200), "large", size_bytes=100)
    filled(policy, "small", size_bytes=10)
    for _ in range(5):
        policy.hit("small")
    assert policy.evict(spared=nobody) == "small", "60 < 100"


def test_gdsf_weighs_the_seconds_of_a_refetch() -> None:
    policy = open_policy("gdsf", capacity_bytes=10)
    for name, seconds in (("cheap", 1.0), ("dear", 9.0)):
        policy.miss(name)
        policy.admit(name, size_bytes=5, refetch_seconds=seconds)
        policy.evict(spared=nobody)
        policy.miss(name)
        policy.admit(name, size_bytes=5, refetch_seconds=seconds)
    assert policy.evict(spared=nobody) == "cheap"
