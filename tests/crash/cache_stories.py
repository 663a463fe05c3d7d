"""Processes on one cache directory while one of them is struck: what publishes, evicts and repairs, as real processes.

Run as a program it forks such processes: one JSON line on its stdin is one process, whose pid is the answer, and whose
exit status is found in a file. Starting Python for each of hundreds of cases would take most of the time.
"""

import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsec_blocks.cache import Cache, CacheSettings, open_cache
from dsec_blocks.cache.errors import BundleTooLarge
from dsec_blocks.cache.store import Limits, evict, pin, sweep, turns, unpin
from dsec_blocks.cache.store.check import discard_damaged, verify
from dsec_blocks.cache.store.store import Store

KB = 1000
BUNDLES: dict[str, dict[str, bytes]] = {
    "a": {"weights.bin": b"a" * 300 * KB, "config.json": b"shared" * 100, "sub/tokens": b"tokens"},
    "b": {"weights.bin": b"b" * 350 * KB, "config.json": b"shared" * 100},
    "c": {"weights.bin": b"a" * 300 * KB, "extra.bin": b"c" * 100 * KB},
    "d": {"weights.bin": b"d" * 400 * KB},
    "e": {"weights.bin": b"e" * 200 * KB},
    "huge": {"weights.bin": b"h" * 1000 * KB},
}
LIMIT = 900 * KB
Story = Callable[[Cache, Path], None]


def origin(root: Path, name: str) -> str:
    return str(root / "origin" / name)


def make_origin(root: Path) -> None:
    for name, content in BUNDLES.items():
        for path, raw in content.items():
            target = root / "origin" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)


def cache_in(root: Path) -> Cache:
    limits = Limits(limit_bytes=LIMIT, free_bytes=0, free_inodes=0)
    return open_cache(CacheSettings(directory=root / "cache", limits=limits, revalidate="always"))  # type: ignore[arg-type]


def fill(cache: Cache, root: Path) -> None:
    """Two bundles that share a file are fetched, used again, and given back."""
    for name in ("a", "b", "a"):
        with cache.acquire(origin(root, name)) as lease:
            assert (lease.path / "config.json").read_bytes() == BUNDLES[name]["config.json"]


def make_room(cache: Cache, root: Path) -> None:
    """A third bundle needs the room of others; some of what leaves is shared with what stays."""
    fill(cache, root)
    with cache.acquire(origin(root, "c")), cache.acquire(origin(root, "d")):
        pass
    with suppress(BundleTooLarge):
        cache.acquire(origin(root, "huge"))


def one(cache: Cache, root: Path) -> None:
    """One bundle is fetched."""
    with cache.acquire(origin(root, "e")):
        pass


def remove(cache: Cache, root: Path) -> None:
    """A bundle is taken off the disk whose file another one shares, then pinned, unpinned, verified."""
    fill(cache, root)
    with cache.acquire(origin(root, "a")) as lease:
        bundle = lease.bundle
        assert not evict(cache.store, bundle, why="a test")
    assert pin(cache.store, bundle, who="a test") is not None
    unpin(cache.store, bundle)
    evict(cache.store, bundle, why="a test")


def resume(cache: Cache, root: Path) -> None:
    """Of two fetches that others left half-way one is gone on with, the other gives up its room."""
    make_room(cache, root)


def repair(cache: Cache, root: Path) -> None:
    """What the dead left is taken away: by a sweep, and by looking at every byte."""
    fill(cache, root)
    store: Store = cache.store
    sweep(store, staging_seconds=0.0)
    with cache.acquire(origin(root, "a")) as lease:
        (lease.path / "sub" / "tokens").unlink()  # somebody cleans up by hand, and cuts a blob short
        _overwrite(next(store.layout.blobs.glob(f"??/{lease.manifest.files[0].digest}")), b"short")
    with cache.acquire(origin(root, "a")):
        pass
    with cache.acquire(origin(root, "b")) as lease:
        digest = next(file.digest for file in lease.manifest.files if file.path == "weights.bin")
        blob = store.layout.blob(digest)
    _overwrite(blob, b"x" * blob.stat().st_size)
    for view, path, is_right in list(verify(store.layout)):
        if not is_right:
            discard_damaged(store, view, [path])
    sweep(store, staging_seconds=0.0)


def _overwrite(blob: Path, content: bytes) -> None:
    blob.chmod(0o644)
    blob.write_bytes(content)


STORIES: dict[str, Story] = {story.__name__: story for story in (fill, one, make_room, remove, resume, repair)}


def zygote() -> None:
    """Fork a process for each line, until stdin ends."""
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.005)
        _reap()
        if not ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _tell(order["story"], Path(order["root"]), order["environment"])
        _roots[pid] = Path(order["root"])
        print(pid, flush=True)


_roots: dict[int, Path] = {}


def _reap() -> None:
    while _roots:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        (_roots.pop(pid) / f"exit-{pid}").write_text(str(os.waitstatus_to_exitcode(status)))


def _tell(story: str, root: Path, environment: dict[str, str]) -> None:
    """In the child: be struck while telling the story."""
    turns.IDLE_SECONDS = 0.3
    os.environ.update(environment)
    try:
        STORIES[story](cache_in(root), root)
    except BaseException:
        (root / f"error-{os.getpid()}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    from dsec_blocks.cache import transfer  # noqa: F401  so that no child has to

    zygote()
