"""An agent whose cache is what a NodeCache block says: real server, real block, real agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsec_blocks.cache.bundles import BundleAddress
from tests.fixtures.prefect import PrefectServer
from tests.workers.node_agent.conftest import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SAVE = "import sys; from dsec_blocks import NodeCache; NodeCache(directory=sys.argv[1], limit='64MiB').save('of-nodes')"


def test_an_agent_takes_directory_and_limit_from_a_block(
    prefect_server: PrefectServer, home: Home, tmp_path: Path
) -> None:
    directory = tmp_path / "on-another-disk"
    environment = {**os.environ, **prefect_server.environment}
    subprocess.run([sys.executable, "-c", SAVE, str(directory)], env=environment, check=True, timeout=120)
    home.start("--block", "of-nodes", **prefect_server.environment)
    found = home.client.inventory()
    assert (found["directory"], found["capacity_bytes"]) == (str(directory), 64 * 2**20)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(b"w" * 1000)
    asked = home.client.prefetch(BundleAddress.of(str(tmp_path / "model")))
    assert home.ended(asked["id"])["state"] == "done", home.log
    assert list((directory / "views").iterdir()) and not (home.path / "cache").exists()


def test_a_block_that_is_not_there_is_one_line_and_nothing_starts(prefect_server: PrefectServer, home: Home) -> None:
    home.start("--block", "nobodys", until_it_answers=False, **prefect_server.environment)
    assert home.process is not None
    assert home.process.wait(120) != 0
    (line,) = [line for line in home.log.splitlines() if line.strip()]
    assert "there is no NodeCache block 'nobodys' on the Prefect server" in line
    assert not (home.path / "cache").exists()


def test_a_block_and_a_directory_contradict_each_other(home: Home) -> None:
    home.start("--block", "of-nodes", "--directory", "/elsewhere", until_it_answers=False)
    assert home.process is not None
    assert home.process.wait(120) != 0
    assert "--block of-nodes says where the cache is and how large; leave the other options out" in home.log
