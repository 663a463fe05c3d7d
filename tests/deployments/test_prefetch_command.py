"""`dsec prefetch` as a user meets it: with an agent, on named nodes, without either; one line for every mistake."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache.store import check
from tests.deployments.test_command import dsec, one_line
from tests.fixtures.disks import SmallDisk, small_disk
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin, origin_server
from tests.fixtures.scripted_s3 import ScriptedS3
from tests.workers.node_agent.conftest import NODE, SECONDS, Home, eventually

__all__ = ["origin_server", "small_disk"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
MIB = 2**20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home whose agent reports."""
    home = Home(tmp_path_factory.mktemp("home")).start("--limit", "64MiB")
    ledger = home.ledger()
    eventually(lambda: NODE in ledger.inventories(), "it reports")
    ledger.close()
    yield home
    home.end()


def put(folder: Path, name: str, size: int = 2048) -> str:
    path = folder / name / "weights.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"w" * size)
    return str(path.parent)


@pytest.mark.parametrize("command", ["prefetch", "agent"])
def test_it_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    done = dsec(command, "--help", home=tmp_path)
    assert done.returncode == 0
    assert f"Example: dsec {command}" in " ".join(done.stdout.replace("│", " ").split())


def test_the_agent_of_this_machine_fetches(running: Home, tmp_path: Path) -> None:
    uri = put(tmp_path, "model")
    done = dsec("prefetch", uri, home=running.path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"file://{uri} (2 KiB) is on this machine, after ")
    assert any(one["uri"] == f"file://{uri}" for one in running.client.prefetches())


def test_named_nodes_fetch_and_each_is_told(running: Home, tmp_path: Path) -> None:
    uri = put(tmp_path, "model")
    done = dsec("prefetch", uri, "--nodes", NODE, "--include", "*.bin", "--json", home=running.path)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert (told["node"], told["state"], told["bytes_done"]) == (NODE, "done", 2048)
    assert dsec("prefetch", uri, "--nodes", "all", home=running.path).returncode == 0


def test_without_an_agent_the_command_fetches_by_itself(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir(exist_ok=True)
    uri = put(tmp_path, "model")
    done = dsec("prefetch", uri, home=home.path)
    assert done.returncode == 0, done.stderr
    assert one_line(done) == "no agent runs here: this command fetches by itself"
    with home.cache.acquire(uri) as lease:
        assert lease.acquired.was_resident
    refused = dsec("prefetch", "/nowhere", home=home.path)
    assert refused.returncode == 1 and "/nowhere does not exist" in refused.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("/nowhere",), 1, "not fetched on this machine: /nowhere does not exist"),
        (("/nowhere", "--nodes", NODE), 1, f"not fetched on {NODE}: /nowhere does not exist"),
        (("ftp://host/x",), 2, "no address of data"),
        (("/data/../secret",), 2, "has '..' in it"),
        (("/data", "--nodes", "node-7"), 2, f"no agent reports for node 'node-7'; those that do: {NODE}"),
        (("/data", "--nodes", ","), 2, "--nodes: name at least one node"),
    ],
)
def test_what_cannot_be_is_one_line(running: Home, words: tuple[str, ...], code: int, says: str) -> None:
    done = dsec("prefetch", *words, home=running.path)
    assert done.returncode == code, done.stderr
    assert says in one_line(done)
    assert check(running.cache.store) == []


def without_an_agent(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.path.mkdir(exist_ok=True)
    return home


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """What the command ended with; before it, it may have said that no agent runs here."""
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_credentials_that_are_refused_are_one_line_and_no_secret_is_in_it(
    tmp_path: Path, origin_server: MisbehavingOrigin
) -> None:
    store = ScriptedS3(origin_server)
    store.is_down = 403
    keys = {
        "AWS_ENDPOINT_URL": store.endpoint_url,
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_REGION": "us-east-1",
    }
    home = without_an_agent(tmp_path)
    done = dsec("prefetch", "s3://models/llama", home=home.path, **keys)
    assert done.returncode == 1
    assert "s3://models/llama: the store refuses these credentials" in last_line(done)
    assert "check the key and its right" in last_line(done) and "hush-hush" not in done.stderr
    assert not (home.path / "cache").exists(), "nothing changed on disk"


def test_a_read_only_directory_is_one_line_that_names_it(
    tmp_path: Path, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(MIB)
    disk.turn_read_only()
    home = without_an_agent(tmp_path)
    done = dsec("prefetch", put(tmp_path, "model"), home=home.path, DSEC_CACHE_DIR=str(disk.path / "cache"))
    assert done.returncode == 1
    assert f"{disk.path}/cache cannot be written" in last_line(done) and "make it writable" in last_line(done)
    assert not list(disk.path.iterdir())


def test_a_bundle_larger_than_the_cache_is_one_line(running: Home, tmp_path: Path) -> None:
    uri = put(tmp_path, "huge", 65 * MIB)
    done = dsec("prefetch", uri, home=running.path)
    assert done.returncode == 1
    assert "needs 65 MiB and the cache in" in one_line(done) and "can hold 64 MiB" in one_line(done)


@pytest.mark.parametrize("with_agent", [True, False])
def test_ctrl_c_takes_it_back_and_ends_with_130(
    with_agent: bool, running: Home, tmp_path: Path, origin_server: MisbehavingOrigin
) -> None:
    home = running if with_agent else Home(tmp_path / "home")
    home.path.mkdir(exist_ok=True)
    origin_server.files["weights.bin"] = b"w" * 20 * MIB
    asked, opened = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> bool:
        asked.set()
        opened.wait(SECONDS)
        return False

    origin_server.tricks.append(hold)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}
    command = subprocess.Popen(
        [sys.executable, "-m", "dsec_deployments.cli", "prefetch", f"{origin_server.url}/weights.bin"],
        env={**clean, "DSEC_HOME": str(home.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert asked.wait(SECONDS)
        command.send_signal(signal.SIGINT)
        _, stderr = command.communicate(timeout=SECONDS)
    finally:
        command.kill()
        opened.set()
    assert command.returncode == 130
    assert "Traceback" not in stderr
    if with_agent:
        (mine,) = [one for one in home.client.prefetches() if one["uri"].startswith(origin_server.url)]
        assert home.ended(mine["id"])["state"] == "cancelled"
