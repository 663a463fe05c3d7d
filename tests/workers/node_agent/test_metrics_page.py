"""What an agent's page shows, of a cache that is used while it is looked at."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from dsec_blocks.cache import Cache, CacheSettings, open_cache
from dsec_blocks.cache.store import Limits, events
from dsec_workers.node_agent.measuring import Measuring
from dsec_workers.node_agent.prefetching import Prefetches
from tests.workers.node_agent.test_agent import sample
from tests.workers.node_agent.test_parts import event, put


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    limits = Limits(limit_bytes=5000, free_bytes=0, free_inodes=0)
    return open_cache(CacheSettings(directory=tmp_path / "cache", limits=limits, policy="gdsf"))


@pytest.fixture
def page(cache: Cache, tmp_path: Path) -> Iterator[Callable[[], str]]:
    prefetches = Prefetches(cache, tmp_path / "asked", at_once=1)
    measuring = Measuring(cache, prefetches)

    def page() -> str:
        measuring.step()
        return generate_latest(measuring.registry).decode()

    yield page
    prefetches.stop(seconds=0)


def test_evictions_are_counted_by_the_policy_that_chose(cache: Cache, page: Callable[[], str], tmp_path: Path) -> None:
    for name, size in (("a", 3000), ("b", 4000), ("c", 4500)):
        cache.acquire(put(tmp_path, name, size)).release()
    text = page()
    assert sample(text, "dsec_cache_evictions_total", policy="gdsf") == 2
    assert sample(text, "dsec_cache_evicted_bytes_total", policy="gdsf") == 7000
    assert sample(page(), "dsec_cache_evictions_total", policy="gdsf") == 2, "each is counted once"


def test_what_is_in_flight_is_told_while_it_is(cache: Cache, page: Callable[[], str], tmp_path: Path) -> None:
    seen: list[tuple[float | None, float | None]] = []

    def arrived(count: int) -> None:
        text = page()
        seen.append(tuple(sample(text, "dsec_cache_bytes", state=state) for state in ("in_flight", "resident")))

    cache.acquire(put(tmp_path, "a", 3000), progress=arrived).release()
    assert seen == [(3000, 0)]
    text = page()
    assert [sample(text, "dsec_cache_bytes", state=state) for state in ("in_flight", "resident")] == [0, 3000]


def test_starts_that_stood_still_and_what_was_near_are_told(cache: Cache, page: Callable[[], str]) -> None:
    cache.store.prepare()
    assert sample(page(), "dsec_cache_byte_hit_ratio", scope="total") is None, "nobody has started yet"
    for one in (event(seconds=1.5), event(cluster=60, origin=40, seconds=2.0), event(background=True, origin=100)):
        events.note(cache.store.layout, one)
    text = page()
    assert sample(text, "dsec_cache_stall_seconds_total") == 3.5
    assert sample(text, "dsec_cache_byte_hit_ratio", scope="total") == 0.8
    assert sample(text, "dsec_cache_byte_hit_ratio", scope="local") == 0.5
