"""The cache's failures that have a name of their own: real processes, stopped, killed and replaced."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import CacheFull
from dsec_blocks.cache.store import check, evict, sweep
from dsec_blocks.cache.store.marks import marks_in
from dsec_blocks.gateways.faults import ENV_FAULT_LOG
from dsec_blocks.model.names import ENV_FAULT
from tests.crash.cache_stories import BUNDLES, cache_in, make_origin, origin
from tests.crash.test_cache import Told, _until_stopped, judge, play, start
from tests.fixtures.clock import ManualClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
DAY = 86_400.0


@pytest.fixture
def root() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dsec-crash-cache-"))
    make_origin(directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def asleep() -> Iterator[Callable[..., Told]]:
    """Processes that tell a story and are stopped right before an effect."""
    told: list[Told] = []

    def begin(story: str, root: Path, *, at: str) -> Told:
        told.append(start(story, root, **{ENV_FAULT: f"{at}:stall:1"}))
        _until_stopped(told[-1])
        return told[-1]

    yield begin
    for each in told:
        each.end()


@contextmanager
def holder(root: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds a bundle and sleeps."""
    program = (
        "import sys, time; from pathlib import Path; from tests.crash.cache_stories import cache_in, origin\n"
        "lease = cache_in(Path(sys.argv[1])).acquire(origin(Path(sys.argv[1]), sys.argv[2]), who='the holder')\n"
        "Path(sys.argv[1], 'held').write_text(str(lease.path)); time.sleep(100)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root), name], cwd=Path(__file__).parent.parent.parent
    )
    try:
        deadline = time.monotonic() + 60
        while not (root / "held").exists() or not (root / "held").read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_stopped_lease_holder_keeps_its_pin_however_long_and_whatever_the_clock_says(root: Path) -> None:
    with holder(root, "a") as process:
        os.kill(process.pid, signal.SIGSTOP)
        cache = cache_in(root)
        clock = ManualClock(seconds=time.time() + 400 * DAY)
        later = replace(cache.store, clock=clock, sight=replace(cache.store.sight, now=clock.now))
        (bundle,) = os.listdir(root / "cache" / "views")
        sweep(later)
        assert not evict(later, bundle, why="a test")
        with pytest.raises(CacheFull, match=rf"the holder \(pid {process.pid}\) since"):
            with cache.acquire(origin(root, "b")):
                cache.acquire(origin(root, "d"))
        held = Path((root / "held").read_text())
        assert (held / "weights.bin").read_bytes() == BUNDLES["a"]["weights.bin"]
    assert evict(cache.store, bundle, why="a test"), "once it is dead, its lease counts for nothing"
    judge(root)


def test_a_pid_that_was_given_again_holds_nothing(root: Path) -> None:
    with holder(root, "a") as process:
        cache = cache_in(root)
        (bundle,) = os.listdir(root / "cache" / "views")
        ((path, _),) = [found for view in (root / "cache" / "leases").iterdir() for found in marks_in(view)]
        told = json.loads(path.read_text())
        assert told["owner"]["process"]["pid"] == process.pid
        told["owner"]["process"]["start_time"] -= 1  # the same pid, another process
        path.write_text(json.dumps(told))
        assert evict(cache.store, bundle, why="a test")
    judge(root)


def test_a_filler_that_is_stopped_holds_nobody_up_for_good(root: Path, asleep: Callable[..., Told]) -> None:
    sleeper = asleep("one", root, at="cache.blob.link")
    assert play("one", root) == 0, "the second filler goes on by itself"
    assert sleeper.goes_on() == 0
    judge(root)


def test_two_fillers_of_one_bundle_fetch_it_once(root: Path) -> None:
    logs = [root / f"passed-{n}" for n in range(2)]
    told: list[Told] = [start("one", root, **{ENV_FAULT_LOG: str(log)}) for log in logs]
    assert [each.join() for each in told] == [0, 0]
    published = [log.read_text().split().count("cache.view.publish") for log in logs]
    assert sorted(published) == [0, 1]
    judge(root)


def test_publishing_against_the_eviction_of_a_shared_blob(root: Path, asleep: Callable[..., Told]) -> None:
    """Both bundles have the same weights. The evictor is stopped with the blob already moved to the trash; a filler
    that wants it finds no blob and fetches it; the evictor wakes and takes away only its own.
    """
    cache = cache_in(root)
    sleeper = asleep("remove", root, at="cache.evict.unlink_blob")
    with cache.acquire(origin(root, "c")) as lease:
        assert (lease.path / "weights.bin").read_bytes() == BUNDLES["c"]["weights.bin"]
        assert sleeper.goes_on() == 0
        assert (lease.path / "weights.bin").read_bytes() == BUNDLES["c"]["weights.bin"]
        assert not [violation for violation in check(cache.store) if violation.rule == "view"]
    judge(root)


def test_a_blob_that_is_given_a_name_while_it_is_evicted_is_a_blob_again(
    root: Path, asleep: Callable[..., Told]
) -> None:
    """The evictor is stopped between seeing that nobody names the blob and moving it; a view takes it meanwhile."""
    sleeper = asleep("remove", root, at="cache.evict.blob")
    cache = cache_in(root)
    with cache.acquire(origin(root, "a")) as lease:
        assert sleeper.goes_on() == 0
        for path, content in BUNDLES["a"].items():
            assert (lease.path / path).read_bytes() == content
        sweep(cache.store)
        assert check(cache.store) == []
    judge(root)


def test_an_evictor_that_wakes_up_late_takes_away_only_the_view_it_looked_at(
    root: Path, asleep: Callable[..., Told]
) -> None:
    sleeper = asleep("remove", root, at="cache.evict.view")
    cache = cache_in(root)
    with cache.acquire(origin(root, "a")) as lease:
        assert lease.acquired.fetched_bytes == 0, "the blobs are there; only the view is spoken for"
        assert sleeper.goes_on() == 0
        for path, content in BUNDLES["a"].items():
            assert (lease.path / path).read_bytes() == content
    judge(root)


def test_a_killed_fetch_is_gone_on_with(root: Path) -> None:
    assert play("fill", root, **{ENV_FAULT: "cache.blob.seal:kill_before"}) == -signal.SIGKILL
    log = root / "passed"
    cache = cache_in(root)
    assert play("one", root, **{ENV_FAULT_LOG: str(log)}) == 0
    with cache.acquire(origin(root, "a")) as lease:
        assert lease.acquired.fetched_bytes == 0, "every byte had arrived before the kill"
    judge(root)
