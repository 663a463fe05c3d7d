"""The pure rules of a transfer: how many connections, how long a range, what is missing, what a hash must equal."""

import base64
import hashlib
import os
import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.transfer.gaps import ALIGNED_BYTES, Gaps
from dsec_blocks.cache.transfer.hashing import ContentHash
from dsec_blocks.cache.transfer.pace import Pace
from dsec_blocks.cache.transfer.settings import MIB, TransferSettings
from dsec_blocks.cache.transfer.sizing import connections_for, piece_bytes, range_bytes

SPANS = st.tuples(st.integers(0, 500), st.integers(0, 500))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"connections": 0}, "connections=0"),  # C8: zero connections marked incomplete files as complete
        ({"connections": 33}, "connections=33: give 1 to 32"),
        ({"max_connections": 0}, "at least 1 connection"),
        ({"memory_bytes": 1000}, "at least 256 KiB"),
        ({"bandwidth_bytes_per_second": 0}, "more than 0"),
        ({"patience_seconds": -1}, "0 or more"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(options: dict, told: str) -> None:
    with pytest.raises(InvalidCacheSetting, match=told):
        TransferSettings(**options)


@pytest.mark.parametrize(
    ("latency", "cores", "connections"),
    [(None, 2, 4), (0.001, 2, 4), (0.001, 64, 16), (0.010, 2, 16), (0.020, 2, 32), (0.2, 2, 32)],
    ids=["not measured", "near", "near, many cores", "some way off", "far", "another continent"],
)
def test_connections_pay_only_with_latency(latency: float | None, cores: int, connections: int) -> None:
    assert connections_for(latency, TransferSettings(), cores=cores) == connections


@given(st.integers(1, 64), st.integers(256 * 1024, 2**30), st.floats(0, 1))
def test_all_buffers_together_stay_within_the_memory(most: int, memory: int, latency: float) -> None:
    settings = TransferSettings(max_connections=most, memory_bytes=memory)
    connections = connections_for(latency, settings)
    assert 1 <= connections <= most
    assert connections * piece_bytes(settings, buffers=connections + 2) <= max(memory, connections * 65536)


@given(st.integers(1, 2**36), st.integers(1, 64), st.floats(0, 1))
def test_ranges_cover_an_object_and_get_shorter_towards_its_end(size: int, connections: int, latency: float) -> None:
    left, lengths = size, []
    while left and len(lengths) < 4000:
        length = range_bytes(left_bytes=left, connections=connections, latency_seconds=latency)
        assert 0 < length <= left
        lengths.append(length)
        left -= length
    assert lengths == sorted(lengths, reverse=True) or not left


def seconds_of(size: int, *, connections: int, latency: float, rate: float) -> float:
    """How long an object takes whose every connection brings `rate` bytes a second after `latency` seconds."""
    gaps, free_at = Gaps(size), [0.0] * connections
    while gaps.left:
        free_at.sort()
        part = gaps.take(range_bytes(left_bytes=gaps.left, connections=connections, latency_seconds=latency), 0)
        assert part is not None
        free_at[0] += latency + (part.end - part.start) / rate
    return max(free_at)


@pytest.mark.parametrize("latency", [0.0, 0.005, 0.02])
def test_connections_end_together(latency: float) -> None:
    """The last ranges were as long as those before, and most connections waited for them with nothing to do."""
    size, connections, rate = 512 * MIB, 32, 48e6
    took = seconds_of(size, connections=connections, latency=latency, rate=rate)
    assert size / connections / rate / took >= 0.75


def test_an_object_is_dealt_in_few_ranges() -> None:
    """It was 48 where 16 of 32 MiB would do: each waits once, and costs the store its own time."""
    gaps, count = Gaps(512 * MIB), 0
    while gaps.left:
        gaps.take(range_bytes(left_bytes=gaps.left, connections=8, latency_seconds=0.02), 0)
        count += 1
    assert count <= 32


def test_no_range_is_long_before_anybody_knows_how_many_will_share_the_object() -> None:
    """The first of 32 connections took an eighth of a file: it was at it for four times as long as all others."""
    assert range_bytes(left_bytes=512 * MIB, connections=4, latency_seconds=None) == 8 * MIB


@pytest.mark.parametrize("latency", [None, 0.0, 0.02])
def test_a_store_opens_no_piece_twice_for_two_ranges_until_the_last_bytes_are_dealt(latency: float | None) -> None:
    """An eighth of its processor time went into pieces of which one range had the beginning and another the end."""
    gaps = Gaps(512 * MIB)
    while gaps.left > 128 * MIB:
        part = gaps.take(range_bytes(left_bytes=gaps.left, connections=8, latency_seconds=latency), 0)
        assert part is not None and part.end % ALIGNED_BYTES == 0


@given(st.integers(0, 500), st.lists(SPANS, max_size=8), st.integers(1, 60))
def test_what_is_taken_is_exactly_what_was_missing(size: int, there: list[tuple[int, int]], length: int) -> None:
    gaps = Gaps(size)
    missing = set(range(size))
    for start, end in there:
        gaps.remove(start, end)
        missing -= set(range(start, end))
    assert gaps.left == len(missing)
    covered = {byte for start, end in gaps.covered().items() for byte in range(start, end)}
    assert covered == set(range(size)) - missing
    taken: set[int] = set()
    while (part := gaps.take(length, 0)) is not None:
        assert 0 < part.end - part.start <= length
        span = set(range(part.start, part.end))
        assert not span & taken
        taken |= span
    assert taken == missing
    gaps.add(0, size)
    assert gaps.left == size


@pytest.mark.parametrize("promised", [None, "sha256:x", "git-sha1:x"])
def test_every_promise_is_of_the_whole_content(promised: str | None) -> None:
    content = os.urandom(3_000_001)
    running = ContentHash(size_bytes=len(content), promised=promised, with_crc=True)
    position, half = 0, None
    while position < len(content):
        step = random.randint(1, 400_000)
        running.feed(memoryview(content)[position : position + step])
        position += step
        half = half or running.copy()
    assert running.offset == len(content)
    assert running.digest == blake3(content).hexdigest()
    wanted = {
        None: f"blake3:{blake3(content).hexdigest()}",
        "sha256:x": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "git-sha1:x": f"git-sha1:{hashlib.sha1(b'blob 3000001' + bytes(1) + content).hexdigest()}",
    }
    assert running.promised == wanted[promised]
    assert half is not None
    half.feed(memoryview(content)[half.offset :])
    assert (half.digest, half.promised, half.crc) == (running.digest, running.promised, running.crc)
    checksums = pytest.importorskip("awscrt.checksums")
    assert running.crc == f"crc64nvme:{base64.b64encode(checksums.crc64nvme(content).to_bytes(8, 'big')).decode()}"


def test_crc64nvme_is_the_one_that_aws_documents() -> None:
    """The check value of the algorithm: crc64nvme("123456789") = ae8b14860a799888."""
    pytest.importorskip("awscrt")
    running = ContentHash(size_bytes=9, with_crc=True)
    running.feed(memoryview(b"123456789"))
    assert running.crc == f"crc64nvme:{base64.b64encode(bytes.fromhex('ae8b14860a799888')).decode()}"


def test_a_cap_spreads_bytes_over_time_and_forgives_a_pause() -> None:
    now, waited = [0.0], []
    pace = Pace(100.0, now=lambda: now[0], wait=waited.append)
    pace.spend(50)
    pace.spend(50)
    assert waited == [0.5, 1.0]
    now[0] = 10.0
    pace.spend(50)
    assert waited[-1] == 0.5
    Pace(None, now=lambda: 0.0, wait=waited.append).spend(10**12)
    assert len(waited) == 3
