"""Who gets a second try alone, and what comes of it: whole sessions of pytest, of two processes as `make test` has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.second_try import ASKED, MOST

pytestmark = pytest.mark.slow  # each starts three processes
ROOT = Path(__file__).resolve().parent.parent.parent
PASSES_LATER = """
from pathlib import Path
def test_it():
    tried = Path(__file__).with_suffix(".tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError("not the first time")
"""
NEVER_PASSES = "def test_it(): assert False"
PASSES = "def test_it(): pass"


def _session(folder: Path, tests: dict[str, str], *, asked: bool = True) -> "subprocess.CompletedProcess[str]":
    for name, text in {"tests/integration/test_good.py": PASSES, **tests}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DSEC_"))}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({ASKED: "1"} if asked else {})}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.fixtures.second_try", "-n", "2", "tests"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_what_passes_alone_lets_the_session_pass_and_is_named(tmp_path: Path) -> None:
    ended = _session(tmp_path, {"tests/integration/test_race.py": PASSES_LATER})
    assert ended.returncode == 0, ended.stdout
    assert "passed: tests/integration/test_race.py::test_it" in ended.stdout
    assert "1 failed" in ended.stdout


def test_what_fails_alone_too_fails_the_session(tmp_path: Path) -> None:
    ended = _session(tmp_path, {"tests/deployments/test_bad.py": NEVER_PASSES})
    assert ended.returncode == 1
    assert "in doubt: tests/deployments/test_bad.py::test_it" in ended.stdout


@pytest.mark.parametrize("place", ["crash", "property", "workers/scheduling", "blocks"])
def test_crash_cases_and_what_needs_no_server_have_no_second_try(tmp_path: Path, place: str) -> None:
    ended = _session(tmp_path, {f"tests/{place}/test_race.py": PASSES_LATER})
    assert ended.returncode == 1
    assert "once more" not in ended.stdout


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    ended = _session(tmp_path, {f"tests/integration/test_race_{n}.py": PASSES_LATER for n in range(MOST + 1)})
    assert ended.returncode == 1
    assert "once more" not in ended.stdout


def test_nobody_tries_again_unasked(tmp_path: Path) -> None:
    ended = _session(tmp_path, {"tests/integration/test_race.py": PASSES_LATER}, asked=False)
    assert ended.returncode == 1


def test_only_make_test_asks() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert makefile.count(ASKED) == 1
    assert f"{ASKED}=1" in makefile.partition("\ntest:")[2].partition("\n\n")[0]
