"""A disk that is full, read-only or gone ends a fetch in one line, with nothing half-published."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import CacheSettings, open_cache
from dsec_blocks.cache.errors import LocalDiskError
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.store import Limits, check, sweep
from dsec_blocks.cache.transfer import TransferSettings, fetch
from dsec_blocks.gateways.staged import StagedFile
from tests.fixtures.disks import SmallDisk

MIB = 2**20


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(os.urandom(4 * MIB))
    return source


def bring(bundle: Path, staging: Path, **options) -> None:
    origin = origin_for(str(bundle))
    fetch(origin.list(str(bundle)), origin=origin, staging=staging, **options)


def test_a_full_disk_is_known_before_the_first_byte_is_fetched(
    bundle: Path, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(6 * MIB)
    arrived: list[int] = []
    with pytest.raises(LocalDiskError, match="the disk is full: free space there"):
        bring(bundle, disk.path / "staging", progress=arrived.append)
    assert not arrived


def test_a_read_only_disk_is_one_line(bundle: Path, small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(16 * MIB)
    disk.turn_read_only()
    with pytest.raises(LocalDiskError, match="the disk is read-only"):
        bring(bundle, disk.path / "staging")


def test_a_directory_that_is_a_file_is_one_line(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalDiskError, match=str(tmp_path)):
        bring(bundle, tmp_path / "file" / "staging")


@pytest.mark.parametrize("point", ["cache.transfer.write", "cache.transfer.sync", "cache.transfer.journal"])
def test_a_disk_that_fails_in_the_middle_is_one_line_and_the_next_fetch_is_whole(
    point: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_FAULT", f"{point}:error")
    with pytest.raises(LocalDiskError):
        bring(bundle, tmp_path / "staging", settings=TransferSettings(patience_seconds=1))
    monkeypatch.delenv("DSEC_FAULT")
    bring(bundle, tmp_path / "staging")


class TurnsReadOnly(PathOrigin):
    """An origin whose second listing finds the disk read-only: everything has arrived and nothing is published."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk
        self._listings = 0

    def list(self, uri: str, **patterns):  # type: ignore[no-untyped-def]
        self._listings += 1
        if self._listings == 2:
            self._disk.turn_read_only()
        return super().list(uri, **patterns)


def nobody_to_wait_for(seconds: float) -> None:
    raise AssertionError("the failed fetch of this very process was waited for")


def test_a_disk_that_turns_read_only_during_a_fetch_is_one_line_and_leaves_nothing_half_published(
    bundle: Path, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(64 * MIB)
    limits = Limits(limit_bytes=32 * MIB, free_bytes=0, free_inodes=0)
    cache = open_cache(CacheSettings(directory=disk.path / "cache", limits=limits))
    with pytest.raises(LocalDiskError, match=r"Read-only file system|the disk is read-only") as caught:
        replace(cache, origin_of=lambda _: TurnsReadOnly(disk)).acquire(str(bundle))
    assert str(disk.path) in str(caught.value) and "\n" not in str(caught.value)
    assert not list(cache.store.layout.views.iterdir()) and not list(cache.store.layout.refs.iterdir())
    disk.turn_writable()
    impatient = replace(cache, store=replace(cache.store, pause=nobody_to_wait_for))
    with impatient.acquire(str(bundle)) as lease:
        assert {path.name: path.read_bytes() for path in lease.path.iterdir()} == {
            path.name: path.read_bytes() for path in bundle.iterdir()
        }
    sweep(cache.store)
    assert check(cache.store) == []


def test_a_write_that_a_read_only_disk_refuses_is_not_tried_again(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel remounts a failing disk under open files; a test may not, so the refusal is the gateway's."""
    written: list[int] = []
    write = StagedFile.write

    def refuses(file: StagedFile, piece: memoryview, offset: int, *, at: str) -> None:
        written.append(len(piece))
        if len(written) > 2:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        write(file, piece, offset, at=at)

    cache = open_cache(CacheSettings(directory=tmp_path / "cache", transfer=TransferSettings(connections=1)))
    with monkeypatch.context() as patched:
        patched.setattr(StagedFile, "write", refuses)
        with pytest.raises(LocalDiskError, match=r"the disk is read-only .* nothing was published"):
            cache.acquire(str(bundle))
    assert len(written) == 3
    assert not list(cache.store.layout.views.iterdir())
    with cache.acquire(str(bundle)) as lease:
        assert 0 < lease.acquired.fetched_bytes <= 8 * MIB
