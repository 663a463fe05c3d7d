"""How the tests are spread over processes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.turns import TURNS, pytest_xdist_make_scheduler, suite_of, turn_of

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_suite_names_tests_that_exist() -> None:
    assert [path for suite in TURNS for path in suite if not list(ROOT.glob(path.rstrip("/") + "*"))] == []


def test_the_crash_matrix_stays_in_one_process_and_begins_among_the_first() -> None:
    matrix, stories = "tests/crash/test_matrix.py", "tests/crash/test_reached.py"
    assert suite_of(matrix) == suite_of(stories) != suite_of("tests/crash/test_by_name.py")
    assert turn_of(matrix) < 2


def test_a_file_of_no_suite_is_one_of_its_own_and_comes_last() -> None:
    alone = "tests/tools/test_turns.py"
    assert suite_of(alone) == alone
    assert turn_of(alone) > max(turn_of(path) for suite in TURNS for path in suite)


def test_the_kubernetes_lane_fails_rather_than_skips_and_plays_tests_that_exist_file_by_file() -> None:
    lines = (ROOT / "Makefile").read_text().partition("\ntest-kube:")[2].partition("\n\n")[0].replace("\\\n", " ")
    words = lines.splitlines()[1].split()
    assert words[0] == "DSEC_KUBERNETES=required"
    paths = [word for word in words if word.startswith("tests/")]
    assert "tests/crash/test_outposts.py" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert words[words.index("--dist") + 1] == "loadfile", "else nearly all of it would be one suite of one process"
    config = SimpleNamespace(option=SimpleNamespace(dist="loadfile"))
    assert pytest_xdist_make_scheduler(config, None) is None  # type: ignore[arg-type]


SERVES = """
import pytest
from pathlib import Path
TOLD = Path("told")
@pytest.fixture(scope="session")
def kubernetes_home():
    tell("starts")
    yield
    tell("ends")
def tell(text):
    with TOLD.open("a") as file:
        file.write(text + " ")
"""
ASKS = "from conftest import tell\ndef test_it(kubernetes_home): tell({!r})"
ASKS_NOT = "from conftest import tell\ndef test_it(): tell({!r})"


@pytest.mark.slow
def test_a_server_that_is_never_idle_ends_with_its_suite_and_comes_again_for_another(tmp_path: Path) -> None:
    tests = {
        "conftest.py": SERVES,
        "tests/fakes/test_kubelet_of_one.py": ASKS.format("first"),
        "tests/fakes/test_kubelet_of_two.py": ASKS_NOT.format("second"),
        "tests/fakes/test_later.py": ASKS_NOT.format("third"),
        "tests/fakes/test_last.py": ASKS.format("fourth"),
    }
    for name, text in tests.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = [name for name in tests if name.startswith("tests")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.fixtures.turns", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "told").read_text().split() == [
        "starts", "first", "second", "ends", "third", "starts", "fourth", "ends",
    ]  # fmt: skip
