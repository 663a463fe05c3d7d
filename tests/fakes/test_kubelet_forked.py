"""A program that the stand-in forks finds itself as one that it executes: environment, paths, signals, descriptors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kubelet import forked

PROBE = """
import json, os, signal, sys
found = {
    "environment": dict(os.environ),
    "argv": len(sys.argv),
    "name": __name__,
    "cwd": os.getcwd(),
    "path": sys.path,
    "tests": [name for name in sys.modules if name.split(".")[0] == "tests"],
    "open": [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")
             and os.readlink(f"/proc/self/fd/{fd}") != "/dev/null" and fd > 2],
    "signals": {name: str(signal.getsignal(getattr(signal, name)))[:20] for name in
                ("SIGTERM", "SIGINT", "SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGHUP")},
}
print(json.dumps(found))
sys.exit(7)
"""
FORK = """
import os, signal, sys, json
from tests.fakes.kubelet import forked
forked.MODULE = "probe"
signal.signal(signal.SIGTERM, lambda *_: None)
held = open(os.devnull.replace("null", "zero"))
env, cwd = json.loads(sys.argv[1])
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(cwd)
    forked.become(env)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_what_is_forked_finds_what_it_would_find_executed(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "more").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "A": "1", "LANG": "C.UTF-8", "PYTHONPATH": str(tmp_path / "more"), "PYTHONUNBUFFERED": "1"}
    executed = _told([sys.executable, "-m", "probe"], cwd=tmp_path, env=env)
    told = _told([sys.executable, "-c", FORK, json.dumps([env, str(tmp_path)])], cwd=Path.cwd(), env=dict(os.environ))
    assert told == executed


def _told(command: list[str], *, cwd: Path, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("argv", "env", "forks"),
    [
        (["python", "-m", forked.MODULE], {}, True),
        ([sys.executable, "-m", forked.MODULE], {"PATH": "/bin"}, True),
        (["python", "-m", forked.MODULE], {"PATH": "/bin"}, False),
        (["python", "-X", "dev", "-m", forked.MODULE], {}, False),
        (["python", "-m", forked.MODULE], {"PYTHONHASHSEED": "0"}, False),
        (["python", "-m", "http.server"], {}, False),
    ],
)
def test_only_a_members_program_in_this_very_interpreter_is_forked(
    argv: list[str], env: dict[str, str], forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSEC_TEST_REAL", raising=False)
    assert forked.can_fork(argv, {"PATH": str(Path(sys.executable).parent), **env}) is forks
    monkeypatch.setenv("DSEC_TEST_REAL", "1")
    assert not forked.can_fork(argv, {"PATH": str(Path(sys.executable).parent), **env})
