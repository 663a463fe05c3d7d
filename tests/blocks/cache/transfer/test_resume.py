"""A fetch that was killed goes on where it was, and believes nothing that it cannot prove."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.transfer import Fetched, TransferSettings, fetch
from tests.fixtures.misbehaving import MisbehavingOrigin

MIB = 2**20
SIZE = 100 * MIB + 17
CONNECTIONS = 3
CHILD = """
import sys
from pathlib import Path
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.transfer import TransferSettings, fetch
origin = origin_for(sys.argv[1])
settings = TransferSettings(connections=3, bandwidth_bytes_per_second=float(sys.argv[3]))
fetch(origin.list(sys.argv[1]), origin=origin, staging=Path(sys.argv[2]), settings=settings)
"""


@pytest.fixture
def url(origin_server: MisbehavingOrigin) -> str:
    origin_server.files["model.bin"] = os.urandom(SIZE)
    return f"{origin_server.url}/model.bin"


def killed_in_the_middle(url: str, staging: Path, *, noted_bytes: int = 40 * MIB) -> int:
    """How many bytes the journal had noted when the child was killed."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, url, str(staging), str(60 * MIB)])
    deadline = time.monotonic() + 60
    while _noted(staging) < noted_bytes:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    return _noted(staging)


def _noted(staging: Path) -> int:
    return sum(end - start for start, end in _done(staging))


def _done(staging: Path) -> list[tuple[int, int]]:
    try:
        lines = (staging / "journal").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    done = []
    for line in lines:
        with suppress(ValueError):
            fields = json.loads(line)
            done += [tuple(fields["r"])] if "d" in fields else []
    return done


def assert_whole(got: Fetched, server: MisbehavingOrigin) -> None:
    is_whole = got.path.read_bytes() == server.files["model.bin"]
    assert is_whole


def resumed(url: str, staging: Path) -> Fetched:
    origin = origin_for(url)
    return fetch(origin.list(url), origin=origin, staging=staging, settings=TransferSettings(connections=CONNECTIONS))[
        0
    ]


# C5: a killed fetch leaves its file for ever, and the next one starts from nothing
@pytest.mark.slow
def test_after_kill_9_only_the_ranges_in_flight_are_fetched_again(
    url: str, origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    noted = killed_in_the_middle(url, tmp_path)
    before = _done(tmp_path)
    origin_server.asked.clear()
    got = resumed(url, tmp_path)
    assert got.digest == blake3(origin_server.files["model.bin"]).hexdigest()
    assert_whole(got, origin_server)
    assert got.fetched_bytes <= SIZE - noted
    for start, end in origin_server.asked["model.bin"]:
        assert not [(low, high) for low, high in before if low < end and start < high]


@pytest.mark.slow
def test_an_object_overwritten_since_the_kill_is_fetched_anew(
    url: str, origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    killed_in_the_middle(url, tmp_path)
    origin_server.files["model.bin"] = os.urandom(SIZE)
    got = resumed(url, tmp_path)
    assert got.fetched_bytes == SIZE
    assert_whole(got, origin_server)


@pytest.mark.slow
def test_what_was_damaged_on_the_disk_is_found_by_its_noted_hash_and_fetched_alone(
    url: str, origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    noted = killed_in_the_middle(url, tmp_path, noted_bytes=90 * MIB)
    (part,) = tmp_path.glob("*.part")
    with part.open("r+b") as file:
        file.seek(1 * MIB)
        file.write(b"damaged")
    got = resumed(url, tmp_path)
    assert_whole(got, origin_server)
    assert SIZE - noted < got.fetched_bytes < SIZE


@pytest.mark.slow
def test_after_a_reboot_only_what_a_hash_confirms_is_kept(
    url: str, origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    noted = killed_in_the_middle(url, tmp_path, noted_bytes=90 * MIB)
    journal = tmp_path / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(b'{"boot":"another"}\n' if b'"boot"' in line else line for line in lines))
    (part,) = tmp_path.glob("*.part")
    with part.open("r+b") as file:  # what the machine lost: all behind the last prefix hash, and a bit before
        file.seek(40 * MIB)
        file.write(bytes(SIZE - 40 * MIB))
    got = resumed(url, tmp_path)
    assert_whole(got, origin_server)
    assert SIZE - noted < got.fetched_bytes < SIZE


def test_a_whole_object_of_an_earlier_fetch_is_not_fetched_again(
    origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    origin_server.files["small"] = b"x" * 1000
    url = f"{origin_server.url}/small"
    first, second = resumed(url, tmp_path), resumed(url, tmp_path)
    assert (first.fetched_bytes, second.fetched_bytes) == (1000, 0)
    assert first.digest == second.digest


def test_a_torn_last_line_of_the_journal_costs_one_range_and_nothing_else(
    origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    origin_server.files["small"] = b"x" * 1000
    url = f"{origin_server.url}/small"
    resumed(url, tmp_path)
    journal = tmp_path / "journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    assert resumed(url, tmp_path).path.read_bytes() == b"x" * 1000
    assert resumed(url, tmp_path).fetched_bytes == 0
