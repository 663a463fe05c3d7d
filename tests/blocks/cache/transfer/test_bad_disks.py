"""A disk that is full, read-only or gone ends a fetch in one line, with nothing half-published."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import LocalDiskError
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.transfer import TransferSettings, fetch
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
