"""The systemd units keep worker and agent running, and a worker's never takes its gangs down with it."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

import dsec_deployments

UNITS = Path(dsec_deployments.__file__).parent / "systemd"
NAMES = ("dsec-worker", "dsec-agent")


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / f"{name}.service").read_text())
    return parser


def test_stopping_the_workers_unit_leaves_the_gangs_running() -> None:
    assert unit("dsec-worker")["Service"]["KillMode"] == "process"


@pytest.mark.parametrize("name", NAMES)
def test_one_that_dies_is_started_again_for_ever(name: str) -> None:
    assert unit(name)["Service"]["Restart"] == "always"
    assert unit(name)["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_units_run_commands_that_there_are() -> None:
    assert unit("dsec-worker")["Service"]["ExecStart"].split()[1:] == ["worker", "--pool", "%i"]
    assert unit("dsec-agent")["Service"]["ExecStart"].split()[1:] == ["agent"]


def test_a_worker_that_is_to_evict_when_it_is_stopped_is_given_the_time_for_it() -> None:
    drop_in = configparser.ConfigParser(strict=False, interpolation=None)
    drop_in.optionxform = str  # type: ignore[assignment, method-assign]
    drop_in.read_string((UNITS / "dsec-worker-evict.conf").read_text())
    service = drop_in["Service"]
    assert service["ExecStart"] == f"{unit('dsec-worker')['Service']['ExecStart']} --evict"
    assert service["TimeoutStopSec"] == "infinity"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    copy = tmp_path / f"{name}{'@' if name == 'dsec-worker' else ''}.service"
    copy.write_text(_of_this_machine(f"{name}.service"))
    if name == "dsec-worker":
        drop_in = tmp_path / f"{copy.name}.d" / "evict.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(_of_this_machine("dsec-worker-evict.conf"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _of_this_machine(file: str) -> str:
    text = (UNITS / file).read_text()
    return text.replace("/opt/dsec/.venv/bin/dsec", "/bin/true").replace("User=dsec", "User=root")
