"""A member's program, forked from here instead of executed: the same code from the same entry, imported once.

What a member's container runs is a Python that imports Prefect, over a second of processor each; a machine with real
nodes has those seconds on each of them. `DSEC_TEST_REAL=1` executes it, and so does an environment with more to say
to the interpreter than where modules are.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dsec_blocks.gateways import processes

MODULE = "dsec_workers.clusters.kubernetes.outpost"
_HARMLESS = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_OWN_PATH = {"", str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
_PATH = [entry for entry in sys.path if entry not in _OWN_PATH]
"""Where this interpreter finds modules, whoever started it."""


def can_fork(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether this command is a member's program, for this very interpreter."""
    return (
        list(argv[1:]) == ["-m", MODULE]
        and (argv[0] == sys.executable or (argv[0] == "python" and _is_first_on(env.get("PATH", ""))))
        and not {name for name in env if name.startswith("PYTHON")} - _HARMLESS
        and not os.environ.get("DSEC_TEST_REAL")
    )


def import_it() -> None:
    """In the process that forks: once, before the first. It leaves no thread behind, so that forking stays safe."""
    if f"{MODULE}.leader" in sys.modules:
        return
    gc.disable()
    import dsec_workers.clusters.kubernetes.outpost.follower
    import dsec_workers.clusters.kubernetes.outpost.leader  # noqa: F401
    from dsec_workers.clusters.local import warmth

    warmth.import_modules()
    warmth.share_tls_contexts()
    gc.freeze()
    gc.enable()


def become(env: Mapping[str, str]) -> NoReturn:
    """In the forked child, its output and working directory in place: be the program, with nothing of ours."""
    from dsec_workers.clusters.local import children

    signal.signal(signal.SIGINT, signal.default_int_handler)  # these three as a Python finds them that was executed
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)
    processes.close_descriptors(keep=[])
    children.take_environment(env)
    more = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [str(Path.cwd()), *more, *_PATH]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    if env.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv = [MODULE]
    children.leave(children.exit_code_of(_run))


def _run() -> int:
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    return 0


def _is_first_on(path: str) -> bool:
    return path.split(os.pathsep)[0] == str(Path(sys.executable).parent)
