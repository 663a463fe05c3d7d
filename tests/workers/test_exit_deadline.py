"""A process that is told to go is gone in time, though its exit hangs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
PROGRAM = """
import atexit, time
from dsec_workers.exit_deadline import exit_within
atexit.register(time.sleep, 600)
exit_within({seconds})
{body}
"""


def ended(seconds: float, body: str) -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.format(seconds=seconds, body=body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_an_exit_that_hangs_is_cut_short_with_a_word() -> None:
    done = ended(0.5, "print('over', flush=True)")
    assert (done.returncode, done.stdout) == (0, "over\n")
    assert "leaves 0.5 s after it was asked to, without waiting any longer" in done.stderr


def test_work_that_does_not_stop_is_cut_short_as_well() -> None:
    assert ended(0.5, "while True: pass").returncode == 0


def test_whoever_is_quick_is_not_disturbed() -> None:
    done = ended(300, "atexit.unregister(time.sleep)")
    assert (done.returncode, done.stderr) == (0, "")
