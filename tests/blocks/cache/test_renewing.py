"""A holder in another pid namespace keeps what it holds for as long as it lives, without doing anything for it."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache
from dsec_blocks.cache.renewing import Renewals
from dsec_blocks.cache.store import evict
from dsec_blocks.cache.store.marks import UNSEEN_SECONDS
from tests.blocks.cache.conftest import Place

SECONDS = 30.0


def eventually(found: Callable[[], bool]) -> bool:
    until = time.monotonic() + SECONDS
    while not found() and time.monotonic() < until:
        time.sleep(0.01)
    return found()


@pytest.fixture
def elsewhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache whose marks are those of a process in another pid namespace, on a machine whose clock is right."""
    renewals = Renewals(every_seconds=0.02)
    for user in ("acquiring", "lease"):
        monkeypatch.setattr(f"dsec_blocks.cache.{user}.RENEWALS", renewals)
    place.clock.seconds = time.time()
    return place.cache()


def age(path: Path) -> None:
    """Make a mark look as if nobody had renewed it for longer than an unseen owner is believed in."""
    before = time.time() - UNSEEN_SECONDS - 100
    os.utime(path, (before, before))


def is_young(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < UNSEEN_SECONDS


def test_the_pin_of_a_holder_that_cannot_be_seen_outlives_ten_minutes(elsewhere: Cache, place: Place) -> None:
    me = replace(elsewhere.store.sight.owner(), namespace="pid:[another pod]")
    lease = elsewhere.acquire(place.put("m", w_bin=b"w"), owner=me)
    age(lease.mark_path)
    assert eventually(lambda: is_young(lease.mark_path))
    assert not evict(elsewhere.store, lease.bundle, why="a test")
    lease.release()
    assert evict(elsewhere.store, lease.bundle, why="a test")


def test_a_fetch_that_takes_longer_is_not_given_up_by_those_who_cannot_see_it(elsewhere: Cache, place: Place) -> None:
    reservations = elsewhere.store.layout.reservations
    kept: list[bool] = []

    def arrived(count: int) -> None:
        (mark,) = reservations.iterdir()
        age(mark)
        kept.append(eventually(lambda: is_young(mark)))

    elsewhere.acquire(place.put("m", w_bin=b"w"), progress=arrived).release()
    assert kept == [True]


def test_what_was_given_back_is_not_touched_any_more(tmp_path: Path) -> None:
    renewals = Renewals(every_seconds=0.01)
    given_back, held = tmp_path / "given-back", tmp_path / "held"
    for path in (given_back, held):
        path.touch()
        renewals.keep(path)
    renewals.drop(given_back)
    age(given_back)
    for _ in range(3):
        age(held)
        assert eventually(lambda: is_young(held))
    assert not is_young(given_back)


def test_a_mark_that_is_gone_hinders_no_other(tmp_path: Path) -> None:
    renewals = Renewals(every_seconds=0.01)
    held = tmp_path / "held"
    held.touch()
    age(held)
    with renewals.kept(tmp_path / "no" / "mark", held):
        assert eventually(lambda: is_young(held))


def test_a_forked_child_renews_its_own_and_not_its_parents(tmp_path: Path) -> None:
    renewals = Renewals(every_seconds=0.01)
    parents, childs = tmp_path / "parents", tmp_path / "childs"
    for path in (parents, childs):
        path.touch()
    renewals.keep(parents)
    pid = os.fork()
    if pid == 0:  # the parent's thread is not here; what the child keeps gets one of its own
        code = 1
        try:
            renewals.keep(childs)
            age(childs)
            code = 0 if eventually(lambda: is_young(childs)) and renewals._paths == {childs} else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
