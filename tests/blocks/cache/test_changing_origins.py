"""A bundle that changes while it is fetched is fetched as it is now, and what did not change is not fetched again."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache
from dsec_blocks.cache.acquiring import MOST_FETCHES
from dsec_blocks.cache.errors import BundleMissing, OriginChanged
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.store import check, sweep
from tests.blocks.cache.conftest import KB, Place
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin, origin_server

__all__ = ["origin_server"]
MIB = 2**20


def during_the_fetch(*happens: Callable[[], object]) -> Callable[[int], None]:
    """What happens when the first bytes of each fetch arrive."""
    left = list(happens)

    def arrived(count: int) -> None:
        if left:
            left.pop(0)()

    return arrived


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bundle_overwritten_during_its_fetch_is_fetched_as_it_is_now(
    origin_server: MisbehavingOrigin, place: Place
) -> None:
    origin_server.files["model.bin"] = os.urandom(3 * MIB)
    newer = os.urandom(3 * MIB)

    def overwrite(exchange: Exchange) -> bool:
        origin_server.files["model.bin"] = newer
        return False

    origin_server.times(1, overwrite)
    with place.cache(limit=10 * MIB).acquire(f"{origin_server.url}/model.bin") as lease:
        assert (lease.path / "model.bin").read_bytes() == newer


def test_the_listings_before_and_after_the_fetch_agree(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * 50 * KB)
    arrived = during_the_fetch(lambda: place.put("m", added_bin=b"a" * KB))
    cache = place.cache()
    with cache.acquire(uri, progress=arrived) as lease:
        assert contents(lease.path) == {"w.bin": b"w" * 50 * KB, "added.bin": b"a" * KB}
        assert lease.acquired.fetched_bytes == KB, "what had arrived was kept"
    assert sweep(cache.store).is_nothing and check(cache.store) == []


def test_only_the_object_that_was_overwritten_is_fetched_again(place: Place) -> None:
    uri = place.put("m", large_bin=b"l" * 500 * KB, small_bin=b"old")
    read: list[str] = []

    class Watched(PathOrigin):
        def read(self, item: RemoteObject, **options):  # type: ignore[no-untyped-def]
            read.append(item.path)
            yield from super().read(item, **options)
            if len(read) == 2:  # both arrived; the second listing is to come
                place.put("m", small_bin=b"newer")

    cache = replace(place.cache(), origin_of=lambda _: Watched())
    with cache.acquire(uri) as lease:
        assert contents(lease.path)["small.bin"] == b"newer"
        assert lease.acquired.fetched_bytes == len(b"newer")
    assert sorted(read) == ["large.bin", "small.bin", "small.bin"]


def test_a_bundle_that_never_stands_still_is_one_error_and_nothing_of_it_is_published(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    listings: list[int] = []

    class Restless(PathOrigin):
        def list(self, uri: str, **patterns: Sequence[str]) -> tuple[RemoteObject, ...]:  # type: ignore[override]
            listings.append(1)
            place.put("m", w_bin=b"w" * len(listings))
            return super().list(uri, **patterns)  # type: ignore[arg-type]

    cache: Cache = replace(place.cache(), origin_of=lambda _: Restless())
    with pytest.raises(OriginChanged, match=r"w\.bin was overwritten.*nothing was published"):
        cache.acquire(uri)
    assert len(listings) == 2 * MOST_FETCHES
    assert not list(cache.store.layout.views.iterdir()) and not list(cache.store.layout.leases.iterdir())
    sweep(cache.store)
    assert check(cache.store) == []


def test_a_bundle_removed_during_its_fetch_is_missing(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * KB)
    cache = place.cache()
    with pytest.raises(BundleMissing, match="nothing at"):
        cache.acquire(uri, progress=during_the_fetch(lambda: (Path(uri) / "w.bin").unlink()))
    assert not list(cache.store.layout.views.iterdir())
