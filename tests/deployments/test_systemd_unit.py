"""The systemd unit keeps a worker running and never takes its gangs down with it."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

import dsec_deployments

UNIT = Path(dsec_deployments.__file__).parent / "systemd" / "dsec-worker.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def test_stopping_the_unit_leaves_the_gangs_running() -> None:
    assert unit()["Service"]["KillMode"] == "process"


def test_a_worker_that_dies_is_started_again_for_ever() -> None:
    assert unit()["Service"]["Restart"] == "always"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_unit_runs_the_worker_command() -> None:
    assert unit()["Service"]["ExecStart"].split()[1:] == ["worker", "--pool", "%i"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/dsec/.venv/bin/dsec", "/bin/true").replace("User=dsec", "User=root")
    copy = tmp_path / "dsec-worker@.service"
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
