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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    text = (
        (UNITS / f"{name}.service")
        .read_text()
        .replace("/opt/dsec/.venv/bin/dsec", "/bin/true")
        .replace("User=dsec", "User=root")
    )
    copy = tmp_path / f"{name}{'@' if name == 'dsec-worker' else ''}.service"
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
