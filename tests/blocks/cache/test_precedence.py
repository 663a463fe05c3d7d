"""A fetch that a start waits for goes first; a prefetch goes on at a trickle meanwhile."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import TransferCancelled
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.store import turns
from dsec_blocks.cache.store.marks import Mark, living, marks_in
from dsec_blocks.cache.store.precedence import TRICKLE_SECONDS, GivingWay, is_outranked
from dsec_blocks.cache.store.store import Store
from tests.blocks.cache.conftest import Place

SECONDS = 60.0


def ask(store: Store, uri: str, **fields: bool) -> Mark:
    return turns.begin(store, BundleAddress.of(uri), who="a test", **fields)


@pytest.fixture
def store(place: Place) -> Store:
    return replace(place.cache().store, pause=place.clock.advance)


def test_a_prefetch_is_outranked_by_a_start_and_by_nothing_else(store: Store) -> None:
    prefetch = ask(store, "s3://b/one", background=True)
    other = ask(store, "s3://b/two", background=True)
    assert not is_outranked(store, prefetch), "another prefetch has the same rank"
    start = ask(store, "s3://b/three")
    assert is_outranked(store, prefetch) and is_outranked(store, other)
    turns.give_up(store, start)
    assert not is_outranked(store, prefetch)


def test_a_prefetch_that_a_start_waits_for_ranks_as_high_as_any(store: Store) -> None:
    prefetch = ask(store, "s3://b/one", background=True)
    ask(store, "s3://b/three")
    seen: list[bool] = []

    def look() -> bool:
        seen.append(is_outranked(store, prefetch))
        return True

    with pytest.raises(TransferCancelled):
        turns.wait_for(store, prefetch, who="run 7", cancelled=look)
    assert seen == [False]
    assert is_outranked(store, prefetch), "nobody waits any more"
    with pytest.raises(TransferCancelled):
        turns.wait_for(store, prefetch, who="prefetch", cancelled=look, background=True)
    assert seen == [False, True], "another prefetch that waits raises nobody"


def test_it_rests_after_each_piece_and_moves_on(store: Store, place: Place) -> None:
    prefetch = ask(store, "s3://b/one", background=True)
    start = ask(store, "s3://b/two")
    counts: list[int] = []
    giving = GivingWay(store, prefetch, progress=counts.append, cancelled=lambda: False)
    giving(10)
    assert giving.seconds == pytest.approx(TRICKLE_SECONDS, abs=0.1)
    giving(10)
    assert counts == [10, 10] and giving.seconds == pytest.approx(2 * TRICKLE_SECONDS, abs=0.1)
    turns.give_up(store, start)
    giving(10)
    assert giving.seconds == pytest.approx(2 * TRICKLE_SECONDS, abs=0.1)


def test_it_does_not_rest_once_it_is_cancelled(store: Store) -> None:
    prefetch = ask(store, "s3://b/one", background=True)
    ask(store, "s3://b/two")
    giving = GivingWay(store, prefetch, progress=lambda _: None, cancelled=lambda: True)
    giving(10)
    assert giving.seconds == 0.0


class Gated(PathOrigin):
    """An origin that delivers only once it is opened."""

    def __init__(self) -> None:
        self.asked, self.open = threading.Event(), threading.Event()

    def read(self, item, *, start, length, buffer=None) -> Iterator[memoryview]:
        self.asked.set()
        assert self.open.wait(SECONDS)
        yield from super().read(item, start=start, length=length, buffer=buffer)


def test_a_start_that_waits_for_a_prefetch_says_so_while_it_waits_and_no_longer(place: Place) -> None:
    uri = place.put("model", weights_bin=b"w" * 1000)
    gate = Gated()
    cache = place.cache()
    slow = replace(cache, origin_of=lambda _: gate)
    found: list[Mark] = []
    prefetching = threading.Thread(target=lambda: slow.prefetch(uri), daemon=True)
    prefetching.start()
    assert gate.asked.wait(SECONDS)

    def pause(seconds: float) -> None:
        found.extend(mark for mark in living(cache.store.layout.asks, cache.store.sight) if "waits_for" in mark.fields)
        gate.open.set()
        threading.Event().wait(seconds)

    waiting = replace(cache, store=replace(cache.store, pause=pause))
    with waiting.acquire(uri, who="run 7") as lease:
        assert lease.acquired.was_resident, "it was fetched once, by the prefetch"
    prefetching.join(SECONDS)
    assert {mark.who for mark in found} == {"run 7"}
    assert not list(marks_in(cache.store.layout.asks))


def test_a_start_waits_for_a_filler_for_as_long_as_it_writes(store: Store) -> None:
    """A file has its whole length from the beginning, so every filler was taken for stopped after half a minute."""
    address = BundleAddress.of("s3://models/large")
    filler = turns.begin(store, address, who="run 1")
    data = store.layout.staging / filler.id / "data"
    data.mkdir(parents=True)
    (data / "large.part").write_bytes(bytes(1000))
    written = [0]

    def it_writes(seconds: float) -> None:
        store.clock.advance(turns.IDLE_SECONDS / 2)  # type: ignore[attr-defined]
        written[0] += 1
        os.utime(data / "large.part", ns=(written[0], written[0]))
        if written[0] == 10:
            turns.give_up(store, filler)

    def it_stands_still(seconds: float) -> None:
        store.clock.advance(turns.IDLE_SECONDS / 2)  # type: ignore[attr-defined]

    writes, stands_still = (replace(store, pause=pause) for pause in (it_writes, it_stands_still))
    assert not turns.wait_for(stands_still, filler, who="run 2", cancelled=lambda: False)
    assert turns.wait_for(writes, filler, who="run 2", cancelled=lambda: False)
    assert written[0] == 10
