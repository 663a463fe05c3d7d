"""Point × mode over the node's cache: wherever a process that publishes, evicts or repairs is struck, the next one
finds a cache that keeps every rule, reads what the manifests say, and needs no second repair.

The cases need no server, so each day plays one mode of every point; `make test-long` plays all.
"""

import atexit
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from blake3 import blake3

from dsec_blocks.cache.store import check, sweep, usage, verify
from dsec_blocks.cache.store.check import discard_damaged
from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.gateways.faults import ENV_FAULT_LOG, MODES
from dsec_blocks.model.names import ENV_FAULT
from tests.crash import cases
from tests.crash.cache_stories import BUNDLES, LIMIT, STORIES, cache_in, make_origin, origin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SECONDS = 60.0
SELDOM: dict[str, str] = {
    "cache.view.copy": "only a blob with all the names that a file can have",
    "cache.mark.undo": "only after a mark whose own write failed: struck with it",
    "cache.temporary.sweep": "only a day after a write was cut short",
    "cache.ref.remove": "only a month after the bundle left",
    "cache.listing.remove": "with the ref",
    "cache.ask.withdraw": "only behind another filler of the same bundle",
    "cache.wait.place": "the same",
    "cache.wait.withdraw": "the same",
    "cache.event.turn": "only after some thousand acquires",
    "cache.ask.shrink": "only when two ask for room at the same instant",
    "cache.evict.restore": "only when a blob is linked at the instant it is evicted",
    "cache.lease.abandon": "only when the manifest cannot be read for a reason of the disk's",
    "cache.lease.first_undo": "only after a publish that failed",
    "cache.lease.undo": "only after a ref that could not be written",
    "cache.reservation.abandon": "only after an origin that stopped answering",
}
"""Points of the store that no story reaches, and why; tests/blocks/cache/test_rare_faults.py strikes each of them."""


def points() -> list[str]:
    """The fault points of the store."""
    told = cases.told_of_points()
    return [name for name, fields in told.items() if fields["module"].startswith("dsec_blocks/cache/store/")]


@pytest.fixture
def root() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="dsec-crash-cache-", dir=memory))
    make_origin(directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


class Told:
    """A process that tells a story."""

    def __init__(self, pid: int, root: Path) -> None:
        self.pid = pid
        self._exit = root / f"exit-{pid}"

    @property
    def is_over(self) -> bool:
        return self._exit.exists() and bool(self._exit.read_text())

    def join(self) -> int:
        deadline = time.monotonic() + SECONDS
        while not self.is_over:
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.003)
        return int(self._exit.read_text())

    def goes_on(self) -> int:
        """Wake it after it was stopped, and wait for its end."""
        os.kill(self.pid, signal.SIGCONT)
        return self.join()

    def end(self) -> None:
        """Leave no stopped process behind, whatever the test found."""
        if not self.is_over:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@cache
def _zygote() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.cache_stories"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("DSEC_")},
    )
    atexit.register(process.kill)
    return process


def start(story: str, root: Path, **environment: str) -> Told:
    zygote = _zygote()
    assert zygote.stdin is not None and zygote.stdout is not None
    zygote.stdin.write(json.dumps({"story": story, "root": str(root), "environment": environment}) + "\n")
    zygote.stdin.flush()
    return Told(int(zygote.stdout.readline()), root)


def play(story: str, root: Path, **environment: str) -> int:
    return start(story, root, **environment).join()


@cache
def reached() -> dict[str, list[str]]:
    """Which story passes which points when nothing fails."""
    found = {}
    for story in STORIES:
        directory = Path(tempfile.mkdtemp(prefix="dsec-crash-cache-"))
        try:
            make_origin(directory)
            before(story, directory)
            log = directory / "passed"
            assert play(story, directory, **{ENV_FAULT_LOG: str(log)}) == 0
            found[story] = sorted(set(log.read_text().split()))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return found


def before(story: str, root: Path) -> None:
    """What a story finds when it begins."""
    deaths = {
        "resume": [("fill", "cache.blob.seal:kill_before"), ("one", "cache.blob.seal:kill_before")],
        "repair": [
            ("make_room", "cache.evict.view:kill_after"),
            ("one", "cache.reservation.grant:kill_before"),
            ("one", "cache.blob.seal:kill_before"),
            ("fill", "cache.policy.note:kill_after"),
        ],
    }
    for told, fault in deaths.get(story, []):
        assert play(told, root, **{ENV_FAULT: fault}) == -signal.SIGKILL, f"{told} is not struck at {fault}"


def struck(story: str, point: str, mode: str, root: Path) -> None:
    before(story, root)
    if mode == "stall":
        sleeper = start(story, root, **{ENV_FAULT: f"{point}:stall:1"})
        try:
            _until_stopped(sleeper)
            play("make_room", root)  # whoever comes meanwhile may find the cache held, and must not hang
            sleeper.goes_on()
        finally:
            sleeper.end()
    else:
        code = play(story, root, **{ENV_FAULT: f"{point}:{mode}"})
        assert (code == -signal.SIGKILL) == mode.startswith("kill")
    judge(root)


def judge(root: Path) -> None:
    """Everything that must hold once the dust has settled."""
    cache = cache_in(root)
    assert usage(cache.store.layout, cache.store.sight).used_bytes <= LIMIT
    whole(cache.store.layout)
    for view, path, is_right in list(verify(cache.store.layout)):
        if not is_right:  # the story damages a file; a verify that was cut short is typed again
            discard_damaged(cache.store, view, [path])
    sweep(cache.store)
    assert check(cache.store) == []
    before = picture(root / "cache")
    assert sweep(cache.store).is_nothing
    assert picture(root / "cache") == before, "a second recovery writes nothing"
    for name, content in BUNDLES.items():
        if name == "huge":
            continue
        with cache.acquire(origin(root, name)) as lease:
            found = {str(p.relative_to(lease.path)): p.read_bytes() for p in lease.path.rglob("*") if p.is_file()}
            assert found == content
    assert check(cache.store) == []


def whole(layout: Layout) -> None:
    """Before any repair: whatever has a published name is what its name says."""
    for blob in layout.blobs.glob("??/*"):
        assert blake3(blob.read_bytes()).hexdigest() == blob.name or blob.stat().st_mode & 0o200
    for view in layout.views.glob("*/*"):
        assert blake3((view / "manifest.json").read_bytes()).hexdigest() == view.parent.name


def picture(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


def _until_stopped(process: Told) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not process.is_over:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        if stat[stat.rindex(")") + 2] == "T":
            return
        time.sleep(0.005)
    raise AssertionError("it was never stopped")


def matrix() -> list[tuple[str, str]]:
    return list(itertools.product([point for point in points() if point not in SELDOM], MODES))


def todays() -> list[tuple[str, str]]:
    """One mode of every point; the next one tomorrow."""
    by_point = [point for point in points() if point not in SELDOM]
    return [(point, MODES[(cases.seed() + place) % len(MODES)]) for place, point in enumerate(by_point)]


def story_of(point: str) -> str:
    return next(
        story for story in ("repair", "make_room", "remove", "resume", "fill", "one") if point in reached()[story]
    )


def test_every_point_of_the_store_is_reached_by_a_story() -> None:
    passed = set(itertools.chain.from_iterable(reached().values()))
    assert set(points()) - passed - set(SELDOM) == set(), "no story reaches these"


@pytest.mark.parametrize(("point", "mode"), todays())
def test_matrix(point: str, mode: str, root: Path) -> None:
    struck(story_of(point), point, mode, root)


@pytest.mark.long
@pytest.mark.parametrize(("point", "mode"), [case for case in matrix() if case not in todays()])
def test_rest_of_the_matrix(point: str, mode: str, root: Path) -> None:
    struck(story_of(point), point, mode, root)
