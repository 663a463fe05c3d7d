"""Acquire, release, evict, sweep and death, in any order and interleaved at every durable effect."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsec_blocks.cache.errors import CacheFull
from dsec_blocks.cache.store import check, evict, sweep, usage
from tests.property.cache.actors import Site, reproducible

T = TypeVar("T")
KB = 100
BUNDLES: dict[str, dict[str, bytes]] = {
    "a": {"weights.bin": b"a" * 300 * KB, "config.json": b"shared" * 10, "sub/tokens": b"tokens"},
    "b": {"weights.bin": b"b" * 350 * KB, "config.json": b"shared" * 10},
    "c": {"weights.bin": b"a" * 300 * KB, "extra.bin": b"c" * 100 * KB},
    "d": {"weights.bin": b"d" * 500 * KB, "empty": b""},
}
"""a and c share their weights, a and b a small file."""
LIMIT = 900 * KB
MOST_ACTORS = 4
CHOICE = st.integers(0, 11)


def chosen(among: Sequence[T], which: int) -> T:
    return among[which % len(among)]


class StoreIsNeverWrong(RuleBasedStateMachine):
    """Never over the limit; what is held stays; a reader never sees a part of a bundle; sweeping repairs everything."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of fsyncs that nobody needs
        self.root = Path(tempfile.mkdtemp(prefix="dsec-cache-", dir=memory))
        for name, content in BUNDLES.items():
            for path, raw in content.items():
                target = self.root / "origin" / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(raw)
        self.site = Site(root=self.root, limit_bytes=LIMIT)
        self.patches = ExitStack()
        self.patches.enter_context(reproducible())

    def teardown(self) -> None:
        try:
            self.site.finish()
            self.nothing_is_torn()
            self.repaired()
        finally:
            self.site.kill_all()
            self.patches.close()
            shutil.rmtree(self.root, ignore_errors=True)

    # --- what happens -------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.site.running) < MOST_ACTORS)
    @rule(name=st.sampled_from(sorted(BUNDLES)))
    def acquires(self, name: str) -> None:
        self.site.begin(f"acquire {name}", lambda cache: cache.acquire(str(self.root / "origin" / name), who=name))

    @precondition(lambda self: self.site.holding())
    @rule(which=CHOICE)
    def releases(self, which: int) -> None:
        actor, lease = chosen(self.site.holding(), which)
        actor.result = None
        lease.release()

    @precondition(lambda self: len(self.site.running) < MOST_ACTORS)
    @rule(which=CHOICE)
    def evicts(self, which: int) -> None:
        present = sorted(os.listdir(self.site.cache_root / "views")) if self.site.cache_root.exists() else []
        if present:
            bundle = chosen(present, which)
            self.site.begin(f"evict {bundle[:6]}", lambda cache: evict(cache.store, bundle, why="a test"))

    @precondition(lambda self: len(self.site.running) < MOST_ACTORS)
    @rule()
    def sweeps(self) -> None:
        self.site.begin("sweep", lambda cache: sweep(cache.store))

    @precondition(lambda self: self.site.running)
    @rule(turns=st.lists(CHOICE, min_size=1, max_size=25))
    def steps(self, turns: list[int]) -> None:
        for which in turns:
            if self.site.running:
                self.site.step(chosen(self.site.running, which))
                self.never_over_the_limit()

    @precondition(lambda self: self.site.running)
    @rule(which=CHOICE, order=st.sampled_from(["kill_before", "kill_after"]))
    def dies(self, which: int, order: str) -> None:
        self.site.step(chosen(self.site.running, which), order)

    @precondition(lambda self: self.site.holding())
    @rule(which=CHOICE)
    def a_holder_dies(self, which: int) -> None:
        actor, _ = chosen(self.site.holding(), which)
        self.site.exit(actor)

    @rule(seconds=st.sampled_from([-86_400.0, 60.0, 86_400.0 * 40]))
    def the_clock_jumps(self, seconds: float) -> None:
        self.site.clock.seconds += seconds

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def never_over_the_limit(self) -> None:
        store = self.site.cache(1).store
        used = usage(store.layout, store.sight)
        assert used.used_bytes <= LIMIT, used
        on_disk = bytes_on_disk(self.site.cache_root)
        assert sum(on_disk.values()) <= used.used_bytes, f"the accounting misses something: {used} {on_disk}"

    @invariant()
    def a_held_bundle_stays_whole(self) -> None:
        for actor, lease in self.site.holding():
            name = actor.what.removeprefix("acquire ")
            assert read(lease.path) == BUNDLES[name], f"{name} is not what was acquired"

    @invariant()
    def nothing_is_torn(self) -> None:
        """Whatever is published under a digest is whole, whoever looks, whenever."""
        for blob in (self.site.cache_root / "blobs").glob("??/*"):
            with suppress(FileNotFoundError):
                assert blake3(blob.read_bytes()).hexdigest() == blob.name
        for view in (self.site.cache_root / "views").glob("*/*"):
            assert blake3((view / "manifest.json").read_bytes()).hexdigest() == view.parent.name
            assert read(view / "files") in BUNDLES.values()

    @invariant()
    def only_what_must_fails(self) -> None:
        for actor in self.site.actors.values():
            if actor.error is not None and not isinstance(actor.error, CacheFull):
                raise AssertionError(f"{actor.what}: {actor.error!r}") from actor.error

    def repaired(self) -> None:
        """Once everybody is gone, one sweep leaves a clean cache and the next finds nothing."""
        store = self.site.cache(2).store
        sweep(store, staging_seconds=0.0)
        assert check(store) == []
        before = picture(self.site.cache_root)
        assert sweep(store, staging_seconds=0.0).is_nothing
        assert picture(self.site.cache_root) == before
        for name in sorted(BUNDLES):
            held = [lease for _, lease in self.site.holding()]
            try:
                lease = self.site.cache(3).acquire(str(self.root / "origin" / name))
            except CacheFull:
                assert held, "the cache is full though nobody holds anything"
                continue
            assert read(lease.path) == BUNDLES[name]
            lease.release()
        assert check(store) == []


def read(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def bytes_on_disk(root: Path) -> dict[str, int]:
    """Written data, each inode once under its first name, found without any of the code under test."""
    names: dict[int, str] = {}
    sizes: dict[int, int] = {}
    for kind in ("blobs", "views", "staging", "trash"):
        for path in sorted((root / kind).rglob("*")):
            if path.is_file() and path.name not in ("manifest.json", "journal") and not path.name.startswith("."):
                found = path.stat()
                names.setdefault(found.st_ino, str(path.relative_to(root)))
                sizes[found.st_ino] = found.st_size
    return {names[inode]: size for inode, size in sizes.items()}


def picture(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


StoreIsNeverWrong.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestTheStore(StoreIsNeverWrong.TestCase):  # type: ignore[misc, name-defined]
    """The machine above, as a test case."""
