"""`dsec up` from nothing to a pool that runs flows; `dsec down` leaves no process, and the history, behind."""

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dsec_blocks.gateways import processes
from tests.deployments.test_command import dsec
from tests.fixtures.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FLOW = """
import subprocess, time
from prefect import flow
from dsec_blocks.gang import current_gang, gang, run

def work():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    checkpoints = run.checkpoints(every=5)
    checkpoints.restore(default={})
    run.on_evict(lambda step: checkpoints.save(step, {}))
    for step in run.steps(3000):
        time.sleep(0.1)

@gang(devices_per_node=1, grace="20s")
@flow
def lasting():
    current_gang().run(work)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a pool that is up."""
    directory = tmp_path_factory.mktemp("up")
    (directory / "lasting.py").write_text(FLOW)
    port = str(free_port())
    done = dsec("up", "--nodes", "2", "--gpus", "2", "--gpu-model", "H100", "--port", port, home=directory)
    assert done.returncode == 0, done.stderr
    try:
        yield directory
    finally:
        dsec("down", home=directory)


def alive_in(home: Path) -> list[int]:
    """Processes whose environment, or whose parents' environment, belongs to this home."""
    table = list(processes.processes())
    own = [p.pid for p in table if not p.is_zombie and processes.environment(p.pid).get("DSEC_HOME") == str(home)]
    return sorted({*own, *(p.pid for p in processes.descendants(own, among=table))})


def eventually(reached: Callable[[], object], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def gangs(home: Path) -> dict[str, tuple[str, int]]:
    with sqlite3.connect(home / "ledger.db") as connection:
        rows = connection.execute("select name, state, evictions from gangs").fetchall()
    return {name: (state, evictions) for name, state, evictions in rows}


def attempt_of(home: Path, name: str) -> int:
    """Which attempt of the run is the newest; that it runs is said of the former one until a new worker has looked."""
    with sqlite3.connect(home / "ledger.db") as connection:
        ((attempt,),) = connection.execute("select attempt from gangs where name = ?", (name,)).fetchall()
    return int(attempt)


def start_lasting(home: Path, name: str, *, seconds: float = 40) -> None:
    url = json.loads((home / "up.json").read_text())["prefect_api_url"]
    from dsec_deployments.prefect_api import PrefectApi

    api = PrefectApi(url)
    deployment = api.get("deployments/name/lasting/lasting")
    path = f"deployments/{deployment['id']}/create_flow_run"
    api.write("POST", path, {"name": name, "state": {"type": "SCHEDULED"}}, at="test")
    eventually(lambda: gangs(home).get(name, ("", 0))[0] == "running", seconds)


def test_up_again_finds_everything_there(home: Path) -> None:
    before = alive_in(home)
    done = dsec("up", home=home)
    assert done.returncode == 0, done.stderr
    assert "worker: runs" in done.stderr
    assert set(before) <= set(alive_in(home))
    assert dsec("status", home=home).returncode == 0


def test_the_pages_of_a_server_on_another_port_are_told_where_its_api_is(home: Path) -> None:
    up = json.loads((home / "up.json").read_text())
    server = up["prefect_api_url"].removesuffix("/api")
    assert httpx.get(f"{server}/ui-settings", timeout=10).json()["api_url"] == up["prefect_api_url"]


def test_what_can_never_fit_is_refused_by_deploy_in_one_line(home: Path) -> None:
    done = dsec("deploy", "lasting.py", "-s", "nodes=3", "-s", "devices_per_node=2", home=home)
    assert done.returncode == 2
    assert "never hold" in done.stderr.strip().splitlines()[-1]


def test_an_unknown_gpu_model_is_refused_with_those_there_are(home: Path) -> None:
    done = dsec("deploy", "lasting.py", "-s", "gpu_model=B300", home=home)
    assert done.returncode == 2
    assert "H100" in done.stderr.strip().splitlines()[-1]


def test_a_team_that_does_not_exist_is_refused_by_deploy(home: Path) -> None:
    done = dsec("deploy", "lasting.py", "--team", "visoin", home=home)
    assert done.returncode == 2
    assert "unknown team visoin; teams are default" in done.stderr


def test_down_leaves_no_process_behind_and_up_resumes_the_run(home: Path) -> None:
    deployed = dsec("deploy", "lasting.py", home=home)
    assert deployed.returncode == 0, deployed.stderr
    start_lasting(home, "first")
    eventually(lambda: any("sleep" in command(pid) for pid in alive_in(home)))
    escaped = [pid for pid in alive_in(home) if "sleep" in command(pid)]
    before = attempt_of(home, "first")
    done = dsec("down", home=home)
    assert done.returncode == 0, done.stderr
    assert alive_in(home) == []
    assert all(processes.sighting(pid) is None for pid in escaped)
    assert (home / "ledger.db").exists()
    again = dsec("up", home=home)
    assert again.returncode == 0, again.stderr
    eventually(lambda: attempt_of(home, "first") > before and gangs(home)["first"][0] == "running")


def test_down_with_evict_lets_gangs_checkpoint_and_the_next_up_resumes_them(home: Path) -> None:
    eventually(lambda: gangs(home)["first"][0] == "running")
    done = dsec("down", "--evict", home=home)
    assert done.returncode == 0, done.stderr
    assert "every gang has checkpointed" in done.stderr
    assert gangs(home)["first"] == ("waiting", 1)
    assert alive_in(home) == []
    again = dsec("up", home=home)
    assert again.returncode == 0, again.stderr
    eventually(lambda: gangs(home)["first"][0] == "running")


def test_purge_removes_the_history_too(home: Path) -> None:
    done = dsec("down", "--purge", "--yes", home=home)
    assert done.returncode == 0, done.stderr
    assert not home.exists()
    assert alive_in(home) == []
    home.mkdir()


def command(pid: int) -> str:
    done = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout
