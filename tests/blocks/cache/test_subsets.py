"""A part of a bundle that is here as a whole, and the whole of one that is here in part, is not fetched again."""

import pytest

from tests.blocks.cache.conftest import Place

PARTS = {"a_bin": b"a" * 1000, "b_bin": b"b" * 500, "c_json": b"{}"}


@pytest.mark.parametrize("patterns", [{"include": ["*.bin"]}, {"exclude": ["*.json"]}])
def test_a_part_of_what_was_prefetched_is_not_fetched_again(place: Place, patterns: dict[str, list[str]]) -> None:
    uri = place.put("m", **PARTS)
    cache = place.cache()
    cache.prefetch(uri)
    with cache.acquire(uri, **patterns) as lease:
        assert lease.acquired.fetched_bytes == 0
        assert {path.name for path in lease.path.iterdir()} == {"a.bin", "b.bin"}


def test_the_whole_fetches_only_what_its_part_lacked(place: Place) -> None:
    uri = place.put("m", **PARTS)
    cache = place.cache()
    cache.prefetch(uri, include=["a.*"])
    cache.prefetch(uri, include=["*.json"])
    with cache.acquire(uri) as lease:
        assert lease.acquired.fetched_bytes == 500


def test_a_part_that_changed_since_is_fetched(place: Place) -> None:
    uri = place.put("m", **PARTS)
    cache = place.cache()
    cache.prefetch(uri)
    place.put("m", a_bin=b"A" * 1001)
    with cache.acquire(uri, include=["*.bin"]) as lease:
        assert lease.acquired.fetched_bytes == 1001
        assert (lease.path / "a.bin").read_bytes() == b"A" * 1001


def test_what_is_known_of_one_bundle_says_nothing_about_another(place: Place) -> None:
    """Same names, sizes and times elsewhere are no promise of the same content."""
    cache = place.cache()
    cache.prefetch(place.put("m", a_bin=b"a" * 1000))
    with cache.acquire(place.put("n", a_bin=b"b" * 1000)) as lease:
        assert (lease.path / "a.bin").read_bytes() == b"b" * 1000
