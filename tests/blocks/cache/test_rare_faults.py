"""The points that no story of the crash matrix passes, struck one by one: undoing and giving up, a blob without names
to give, a blob that is wanted at the instant it leaves, and what is done once a month.

Each scene is played by a forked child in which the point is struck; whoever comes next finds a cache that keeps every
rule, gives out what the origin has, and needs no second repair.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache, Lease
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import OriginUnreachable
from dsec_blocks.cache.store import check, events, evict, sweep, turns, views
from dsec_blocks.cache.store.marks import path_of, place
from dsec_blocks.gateways import files
from dsec_blocks.gateways.faults import ENV_FAULT_LOG
from dsec_blocks.model.names import ENV_FAULT
from tests.blocks.cache.conftest import KB, Place

CONTENT = b"w" * 20 * KB
LIMIT = 50 * KB
SECONDS = 60.0
MODES = ("kill_before", "kill_after", "error", "lost")


@dataclass
class Scene:
    """What a child plays so that a point is passed. `first`: another fault, without which nobody comes there."""

    play: Callable[["World"], None]
    first: str = ""
    before: Callable[["World"], None] = lambda world: None
    """In the parent, before the child is forked."""
    after: Callable[["World"], None] = lambda world: None
    """In the parent, when the child has ended."""


@dataclass
class World:
    """One cache, one origin."""

    place: Place
    notes: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uri = self.place.put("m", w_bin=CONTENT)

    @property
    def cache(self) -> Cache:
        cache = self.place.cache(limit=LIMIT)
        return replace(cache, store=replace(cache.store, pause=self.place.clock.advance))

    def acquire(self) -> Lease:
        return self.cache.acquire(self.uri)


def warm(world: World) -> None:
    world.acquire().release()


def acquire(world: World) -> None:
    world.acquire().release()


def copy_a_blob_without_names_to_give(world: World) -> None:
    link = files.link

    def refuses(source: Path, target: Path, *, at: str) -> None:
        if at == "cache.view.link":
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(source, target, at=at)

    views.files.link = refuses  # type: ignore[attr-defined]  (in the child only)
    with world.cache.acquire(world.place.put("same", other_bin=CONTENT)) as lease:
        assert (lease.path / "other.bin").read_bytes() == CONTENT


def want_a_blob_at_the_instant_it_leaves(world: World) -> None:
    rename = files.rename
    building = world.cache.store.layout.staging / "another" / "view" / "files"

    def linked(source: Path, target: Path, *, at: str) -> None:
        rename(source, target, at=at)
        if at == "cache.evict.blob":
            building.mkdir(parents=True)
            os.link(target, building / "w.bin")

    views.files.rename = linked  # type: ignore[attr-defined]
    with world.acquire() as lease:
        bundle = lease.bundle
    assert evict(world.cache.store, bundle, why="a test")
    assert list(world.cache.store.layout.blobs.glob("??/*")), "it is a blob again"


def another_fills(world: World) -> None:
    """A filler that does not move: the parent, which lives."""
    store = world.cache.store
    ask = turns.begin(store, BundleAddress.of(world.uri), who="another")
    assert turns.go_ahead(store, ask) is None
    world.notes["ask"] = path_of(store.layout.asks, ask)


def another_wants_all_room(world: World) -> None:
    store = world.cache.store
    store.prepare()
    mark = store.mark("another", key="another", uri="s3://another", bytes=LIMIT, background=False)
    world.notes["ask"] = place(store.layout.asks, mark, at="a.test")


def it_gives_up(world: World) -> None:
    world.notes["ask"].unlink(missing_ok=True)


def acquire_behind_it(world: World) -> None:
    turns.IDLE_SECONDS = 0.2
    acquire(world)


def acquire_until_it_gives_up(world: World) -> None:
    cache = world.cache
    pausing = replace(cache.store, pause=lambda seconds: it_gives_up(world))
    replace(cache, store=pausing).acquire(world.uri).release()


def acquire_on_a_disk_that_cannot_be_read(world: World) -> None:
    def fails(view: views.View, manifest: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    views.View.missing = fails  # type: ignore[method-assign, assignment]
    acquire(world)


def acquire_from_an_origin_that_stops(world: World) -> None:
    def stops(count: int) -> None:
        raise OriginUnreachable("it does not answer")

    world.cache.acquire(world.uri, progress=stops)


def acquire_as_the_journal_is_turned(world: World) -> None:
    events.TURN_BYTES = 1
    acquire(world)


def a_month_later(world: World) -> None:
    with world.acquire() as lease:
        bundle = lease.bundle
    evict(world.cache.store, bundle, why="a test")
    sweep(world.cache.store)
    world.place.clock.advance(31 * 86_400)


def a_write_was_cut_short(world: World) -> None:
    warm(world)
    left = world.cache.store.layout.refs / ".cut-short"
    left.touch()
    os.utime(left, (1, 1))


def repair(world: World) -> None:
    sweep(world.cache.store)


SCENES: dict[str, Scene] = {
    "cache.view.copy": Scene(copy_a_blob_without_names_to_give, before=warm),
    "cache.evict.restore": Scene(want_a_blob_at_the_instant_it_leaves, before=warm),
    "cache.mark.undo": Scene(acquire, before=warm, first="cache.lease.place:lost"),
    "cache.lease.abandon": Scene(acquire_on_a_disk_that_cannot_be_read, before=warm),
    "cache.lease.first_undo": Scene(acquire, first="cache.view.publish:error"),
    "cache.lease.undo": Scene(acquire, first="cache.ref.write:error"),
    "cache.reservation.abandon": Scene(acquire_from_an_origin_that_stops),
    "cache.ask.withdraw": Scene(acquire_behind_it, before=another_fills, after=it_gives_up),
    "cache.wait.place": Scene(acquire_behind_it, before=another_fills, after=it_gives_up),
    "cache.wait.withdraw": Scene(acquire_behind_it, before=another_fills, after=it_gives_up),
    "cache.ask.shrink": Scene(acquire_until_it_gives_up, before=another_wants_all_room, after=it_gives_up),
    "cache.event.turn": Scene(acquire_as_the_journal_is_turned),
    "cache.temporary.sweep": Scene(repair, before=a_write_was_cut_short),
    "cache.ref.remove": Scene(repair, before=a_month_later),
    "cache.listing.remove": Scene(repair, before=a_month_later),
}


def struck(world: World, scene: Scene, fault: str, log: Path) -> int:
    """Play the scene in a child that is struck; how it ended."""
    pid = os.fork()
    if pid == 0:
        os.environ[ENV_FAULT] = ",".join(filter(None, (scene.first, fault)))
        os.environ[ENV_FAULT_LOG] = str(log)
        with suppress(BaseException):
            scene.play(world)
            os._exit(0)
        os._exit(1)
    until = time.monotonic() + SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("it does not end")
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def picture(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", SCENES)
def test_whoever_comes_after_a_rare_fault_finds_a_cache_that_keeps_every_rule(
    point: str, mode: str, place: Place, tmp_path: Path
) -> None:
    scene, world = SCENES[point], World(place)
    scene.before(world)
    code = struck(world, scene, f"{point}:{mode}", tmp_path / "passed")
    assert point in (tmp_path / "passed").read_text().split(), "the scene does not come to the point"
    assert (code == -signal.SIGKILL) == mode.startswith("kill")
    scene.after(world)
    store = world.cache.store
    sweep(store)
    assert check(store) == []
    before = picture(store.layout.root)
    assert sweep(store).is_nothing and picture(store.layout.root) == before, "a second repair writes nothing"
    with world.acquire() as lease:
        assert {path.name: path.read_bytes() for path in lease.path.iterdir()} == {"w.bin": CONTENT}
    assert check(store) == []


@pytest.mark.parametrize("point", SCENES)
def test_each_scene_does_what_it_says_when_only_its_own_fault_strikes(point: str, place: Place, tmp_path: Path) -> None:
    """Without it the table above might strike scenes that fail for reasons of their own."""
    scene, world = SCENES[point], World(place)
    scene.before(world)
    expected = 1 if scene.first or point in ("cache.lease.abandon", "cache.reservation.abandon") else 0
    assert struck(world, scene, "", tmp_path / "passed") == expected
    assert point in (tmp_path / "passed").read_text().split()


def test_every_point_that_the_crash_matrix_leaves_out_has_a_scene() -> None:
    from tests.crash.test_cache import SELDOM

    assert set(SELDOM) == set(SCENES)
