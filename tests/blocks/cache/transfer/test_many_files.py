"""A data set of many small files: neither files kept open nor processor time grow faster than their number."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsec_blocks.cache.cluster_level import uploading
from dsec_blocks.cache.cluster_level.uploading import Behind
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.transfer import engine, fetch
from dsec_blocks.cache.transfer.fetching import Fetched
from dsec_blocks.gateways.staged import StagedFile

MANY = 400


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "origin").mkdir()
    for number in range(MANY):
        (tmp_path / "origin" / f"{number}.bin").write_bytes(str(number).encode() * (number % 7))
    return tmp_path / "origin"


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """A process that may open half as many files as there are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now + MANY // 2, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_bundle_of_more_files_than_may_be_open_is_fetched(files: Path, few_descriptors: None, tmp_path: Path) -> None:
    """It was "refuses a write: Too many open files" on every machine as it comes (1024)."""
    origin = PathOrigin()
    got = fetch(origin.list(str(files)), origin=origin, staging=tmp_path / "staging")
    assert {one.item.path: one.path.read_bytes() for one in got} == {
        path.name: path.read_bytes() for path in files.iterdir()
    }
    assert [
        one.fetched_bytes for one in fetch(origin.list(str(files)), origin=origin, staging=tmp_path / "staging")
    ] == ([0] * MANY), "the journal has them all"


def test_no_more_objects_are_looked_at_for_a_range_than_are_staged(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection looked through all of them for its next range: ten thousand files took minutes."""
    staged: list[int] = []
    init = StagedFile.__init__

    def counted(file: StagedFile, *args: object, **options: object) -> None:
        init(file, *args, **options)  # type: ignore[arg-type]
        staged.append(len([name for name in os.listdir("/proc/self/fd") if _is_part(name)]))

    monkeypatch.setattr(StagedFile, "__init__", counted)
    origin = PathOrigin()
    fetch(origin.list(str(files)), origin=origin, staging=tmp_path / "staging")
    assert len(staged) == MANY and max(staged) <= engine.MOST_OPEN


def _is_part(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").endswith(".part")
    except OSError:
        return False


def test_uploads_behind_a_start_keep_no_more_files_open_than_that(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "MOST_OPEN", 100)
    behind = Behind(None)  # type: ignore[arg-type]
    at_once: list[int] = []
    begun = threading.Event()

    def slowly(own: object, brought: object, open_files: dict[str, int], until: ExitStack) -> None:
        begun.wait(60)
        at_once.append(sum(behind._pending.values()))
        for descriptor in open_files.values():
            os.close(descriptor)

    monkeypatch.setattr(behind, "_upload_all", slowly)
    paths = sorted(files.iterdir())
    for start in range(0, MANY, 40):
        if start == 80:
            begun.set()
        some = paths[start : start + 40]
        behind.upload(None, {path.name: _fetched(path) for path in some}, until=ExitStack())  # type: ignore[arg-type]
    behind.settle()
    assert len(at_once) == MANY / 40 and max(at_once) <= 100


def _fetched(path: Path) -> Fetched:
    item = RemoteObject(uri=str(path), path=path.name, size_bytes=1, version="1")
    return Fetched(item=item, path=path, digest="", size_bytes=1, fetched_bytes=1, verified="length")
