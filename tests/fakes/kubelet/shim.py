"""What stands between the runtime and one container: PID 1's parent, which sees to it that nothing outlives PID 1.

Forked by the runtime, never executed, and single-threaded. It holds the locks of the container's devices, adopts every
orphan among its descendants, and ends when the last of them has. It speaks to the runtime in lines on a pipe.
"""

import ctypes
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from dsec_blocks.gateways import processes
from tests.fakes.kubelet import forked

_PR_SET_PDEATHSIG = 1
_LOCKED_ELSEWHERE = "device {} is held by another process"


class _RuntimeDied(BaseException):
    """The runtime is gone, so the container has to go."""


def run_container(order: Mapping[str, Any], report: int, runtime: int) -> NoReturn:
    """Run one container to its end and exit. `report` is the pipe's writing end.

    `order` has argv, env, cwd, log (a path) and locks (paths). Says `{"pid": N}` then `{"exit": STATUS}`, or
    `{"refused": WHY}`.
    """
    status = 1
    try:
        signal.signal(signal.SIGTERM, _runtime_died)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent(signal.SIGTERM, parent=runtime)
        os.setsid()
        processes.adopt_orphans()
        status = _contain(order, report)
    except _RuntimeDied:
        _kill_descendants()
    finally:
        os._exit(status)


def die_with_parent(signum: int, *, parent: int) -> None:
    """Have the kernel send us `signum` when our parent dies; exit at once when it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _contain(order: Mapping[str, Any], report: int) -> int:
    for path in order["locks"]:
        if processes.hold_lock(Path(path), blocking=False, at="test.kubelet.device") is None:
            _say(report, {"refused": _LOCKED_ELSEWHERE.format(Path(path).name)})
            return 1
    failures, failure = os.pipe()
    shim = os.getpid()
    first = os.fork()
    if first == 0:
        _become(order, failure, shim)
    os.close(failure)
    words = os.read(failures, 4096)  # ends without a word when the program was executed
    if words:
        os.waitpid(first, 0)
        _say(report, {"refused": words.decode(errors="replace")})
        return 1
    _say(report, {"pid": first})
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == first:
            break
    _kill_descendants()
    _say(report, {"exit": os.waitstatus_to_exitcode(status)})
    return 0


def _become(order: Mapping[str, Any], failure: int, shim: int) -> NoReturn:
    try:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL, parent=shim)
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(order["cwd"])
        argv, env = order["argv"], order["env"]
        if forked.can_fork(argv, env):
            os.close(failure)
            forked.become(env)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(failure, f"exec {order['argv'][0]!r}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _kill_descendants() -> None:
    """As the kernel does when PID 1 of a pid namespace ends: nobody is asked, and nobody is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for row in processes.descendants([os.getpid()]):
            with suppress(ProcessLookupError):
                os.kill(row.pid, signal.SIGKILL)
        time.sleep(0.002)


def _say(report: int, message: Mapping[str, Any]) -> None:
    with suppress(BrokenPipeError):
        os.write(report, json.dumps(message).encode() + b"\n")


def _runtime_died(_signum: int, _frame: object) -> None:
    raise _RuntimeDied
