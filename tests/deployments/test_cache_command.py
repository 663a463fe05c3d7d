"""`dsec cache` as a user meets it: no server, one clear line for every mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache, CacheSettings, open_cache
from dsec_blocks.cache.store import Limits, pin
from tests.deployments.test_command import dsec, one_line
from tests.fixtures.disks import SmallDisk, small_disk

__all__ = ["small_disk"]
COMMANDS = ["cache ls", "cache du", "cache pin", "cache unpin", "cache rm", "cache verify", "cache gc", "cache check"]


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, Cache, str]:
    """A home whose cache holds one bundle."""
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "weights.bin").write_bytes(b"w" * 2046)
    (origin / "config.json").write_bytes(b"{}")
    cache = open_cache(
        CacheSettings(directory=tmp_path / "home" / "cache", limits=Limits(limit_bytes=10**6, free_bytes=0))
    )
    cache.acquire(str(origin)).release()
    return tmp_path / "home", cache, str(origin)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_cache_command_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    done = dsec(*command.split(), "--help", home=tmp_path)
    assert done.returncode == 0
    assert f"Example: dsec {command}" in " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.slow
def test_what_is_there_is_listed_and_what_it_takes(filled: tuple[Path, Cache, str]) -> None:
    home, cache, uri = filled
    with cache.acquire(uri, who="run train-7"):
        shown = dsec("cache", "ls", home=home, COLUMNS="100").stdout
        assert f"file://{uri}; held by run train-7 (pid" in shown and "2 KiB" in shown
        (told,) = json.loads(dsec("cache", "ls", "--json", home=home).stdout)
        assert told["size_bytes"] == 2048 and told["holders"][0]["who"] == "run train-7"
    used = json.loads(dsec("cache", "du", "--json", home=home).stdout)
    assert (used["used_bytes"], used["resident_bytes"], used["limit_bytes"]) == (2048, 2048, 10**6)


@pytest.mark.slow
def test_a_pinned_bundle_is_not_removed_until_it_is_unpinned(filled: tuple[Path, Cache, str]) -> None:
    home, _, uri = filled
    assert dsec("cache", "pin", uri, "--why", "the demo", home=home).returncode == 0
    refused = dsec("cache", "rm", uri, home=home)
    assert refused.returncode == 1
    assert "is held by the demo (pin of" in one_line(refused) and "unpin" in one_line(refused)
    assert dsec("cache", "unpin", uri, home=home).returncode == 0
    assert "is not pinned" in one_line(dsec("cache", "unpin", uri, home=home))
    assert dsec("cache", "rm", uri, home=home).returncode == 0
    assert "nothing is in the cache" in dsec("cache", "ls", home=home).stdout


@pytest.mark.slow
def test_a_damaged_file_is_found_taken_away_and_told_by_the_exit_code(filled: tuple[Path, Cache, str]) -> None:
    home, cache, uri = filled
    assert dsec("cache", "verify", home=home).stdout.strip() == "2 files are what their manifests say"
    with cache.acquire(uri) as lease:
        damaged = lease.path / "weights.bin"
        damaged.chmod(0o644)
        damaged.write_bytes(b"x" * 2046)
    assert dsec("cache", "check", home=home).returncode == 1
    found = dsec("cache", "verify", home=home)
    assert found.returncode == 1 and "weights.bin damaged" in found.stdout
    assert dsec("cache", "verify", home=home).returncode == 0
    assert dsec("cache", "gc", home=home).stdout.strip() == "nothing to repair"
    assert "keeps every rule" in dsec("cache", "check", home=home).stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [("rm", "s3://models/none"), ("pin", "abc123"), ("verify", "/nowhere")])
def test_a_bundle_that_is_not_there_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = dsec("cache", *words, home=tmp_path)
    assert done.returncode == 1
    assert words[1] in one_line(done) and "dsec cache ls" in one_line(done)
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_looking_at_a_cache_that_is_not_there_makes_none(tmp_path: Path) -> None:
    for command in ("ls", "du", "gc", "check", "verify"):
        assert dsec("cache", command, home=tmp_path).returncode == 0, command
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("word", "what"), [("pin", "pinned"), ("unpin", "unpinned"), ("rm", "removed"), ("gc", "")])
def test_a_cache_on_a_read_only_disk_is_one_line_and_stays_as_it_is(
    word: str, what: str, tmp_path: Path, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(2**20)
    root = disk.path / "cache"
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "weights.bin").write_bytes(b"w" * 2046)
    limits = Limits(limit_bytes=10**6, free_bytes=0, free_inodes=0)
    cache = open_cache(CacheSettings(directory=root, limits=limits))
    with cache.acquire(str(origin)) as lease:
        bundle = lease.bundle
    if word == "unpin":
        pin(cache.store, bundle, who="a test")
    if word == "gc":  # a blob that nobody names
        (root / "blobs" / "ab").mkdir()
        (root / "blobs" / "ab" / ("ab" * 32)).touch()
    disk.turn_read_only()
    done = dsec("cache", word, *([bundle[:12]] if what else []), "--directory", str(root), home=tmp_path)
    assert done.returncode == 1
    says = f"{bundle[:12]} cannot be {what}" if what else "nothing can be repaired"
    assert one_line(done).startswith(f"dsec: {says} in the cache directory {root}: Read-only file system; make it")
    shown = dsec("cache", "ls", "--json", "--directory", str(root), home=tmp_path)
    assert [one["bundle"] for one in json.loads(shown.stdout)] == [bundle]
