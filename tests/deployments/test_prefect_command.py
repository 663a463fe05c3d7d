"""Prefect's command as DSec starts servers and workers with it: the same one, the collector kept off imports."""

import subprocess
import sys
from importlib.metadata import version

import pytest

PROGRAM = """
import atexit, gc, sys
from dsec_deployments import prefect_command
sys.argv = ["prefect", *sys.argv[1:]]
atexit.register(lambda: print("kept off", gc.get_freeze_count(), "objects; on:", gc.isenabled()))
prefect_command.main()
"""


@pytest.mark.parametrize("arguments", [("--version",), ("worker", "start", "--help"), ("server", "start", "--help")])
@pytest.mark.slow
def test_it_is_prefects_own_command_and_the_collector_leaves_its_imports_alone(
    arguments: tuple[str, ...],
) -> None:
    own = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, _, last = done.stdout.rpartition("kept off ")
    assert (version("prefect") if arguments == ("--version",) else arguments[0]) in said
    assert int(last.split()[0]) > 100_000
    assert last.strip().endswith("on: True")
