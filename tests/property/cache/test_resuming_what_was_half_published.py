"""A fetch that died while it published, gone on with by the next: what the state machine found, one story each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import CacheFull
from dsec_blocks.cache.store import check, sweep, usage
from dsec_blocks.cache.store.usage import Usage
from tests.property.cache.actors import Actor, Site, reproducible

KB = 1000
WEIGHTS = b"w" * 50 * KB
LIMIT = 90 * KB


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for name, raw in (("model", WEIGHTS), ("other", b"o" * 40 * KB), ("large", b"l" * 80 * KB)):
        (tmp_path / "origin" / name).mkdir(parents=True)
        (tmp_path / "origin" / name / "weights.bin").write_bytes(raw)
    with reproducible():
        site = Site(root=tmp_path, limit_bytes=LIMIT)
        yield site
        site.kill_all()


def acquire(site: Site, name: str = "model") -> Actor:
    return site.begin(f"acquire {name}", lambda cache: cache.acquire(str(site.root / "origin" / name)))


def one_dies(site: Site, at: str, *, order: str = "kill_after") -> None:
    actor = acquire(site)
    site.step_to(actor, at)
    site.step(actor, order)


def used(site: Site) -> Usage:
    store = site.cache(1).store
    return usage(store.layout, store.sight)


def finish_within_the_limit(site: Site) -> None:
    while site.running:
        for actor in site.running:
            site.step(actor)
            assert used(site).used_bytes <= LIMIT, f"{actor.what}, after {actor.at}: {used(site)}"


def published(site: Site) -> list[str]:
    return sorted(path.name for path in (site.cache_root / "views").glob("*/*/files/*"))


@pytest.mark.parametrize("at", ["cache.view.link_staged", "cache.blob.link"])
def test_content_that_is_a_blob_already_is_not_reserved_a_second_time(site: Site, at: str) -> None:
    one_dies(site, at)
    acquire(site)
    finish_within_the_limit(site)
    [(_, lease)] = site.holding()
    assert (lease.path / "weights.bin").read_bytes() == WEIGHTS
    assert lease.acquired.fetched_bytes == 0, "all of it was there"


def test_a_view_has_no_file_that_the_bundle_lacks_when_a_blob_is_linked_again(site: Site) -> None:
    one_dies(site, "cache.blob.link")
    acquire(site)
    finish_within_the_limit(site)
    assert published(site) == ["weights.bin"]


def test_what_somebody_else_throws_away_is_not_taken_off_the_room_that_is_needed(site: Site) -> None:
    one_dies(site, "cache.blob.link")
    heir = acquire(site)
    site.step_to(heir, "cache.reservation.grant")
    site.begin("sweep", lambda cache: sweep(cache.store, staging_seconds=0.0))
    acquire(site, "other")
    finish_within_the_limit(site)


def test_several_that_would_go_on_with_the_same_fetch_count_it_once(site: Site) -> None:
    one_dies(site, "cache.blob.link")
    for _ in range(3):
        acquire(site)
    finish_within_the_limit(site)
    assert len(site.holding()) == 3
    assert published(site) == ["weights.bin"]


def test_a_cache_that_is_full_keeps_what_a_dead_fetch_left(site: Site) -> None:
    one_dies(site, "cache.blob.seal", order="kill_before")
    holder = acquire(site, "other")
    finish_within_the_limit(site)
    assert holder.error is None
    site.limit_bytes = 80 * KB
    heir = acquire(site)
    site.finish()
    assert isinstance(heir.error, CacheFull)
    assert used(site).in_flight_bytes == len(WEIGHTS)


@pytest.mark.parametrize("at", ["cache.staging.take_over", "cache.ask.grow", "cache.reservation.grant"])
def test_who_dies_while_going_on_with_a_dead_fetch_leaves_nothing_that_a_sweep_does_not_find(
    site: Site, at: str
) -> None:
    one_dies(site, "cache.blob.link")
    one_dies(site, at)
    acquire(site)
    finish_within_the_limit(site)
    store = site.cache(2).store
    sweep(store, staging_seconds=0.0)
    assert len(site.holding()) == 1
    assert check(store) == []
