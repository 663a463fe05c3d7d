"""What every process of a gang does first and last: stand apart from the parent it was forked from, and leave.

A forked child must never run its parent's `finally` blocks, answer on its sockets, or hold its locks; so it starts by
dropping all of that, and it leaves by `os._exit` after doing what an interpreter does when it ends.
"""

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from dsec_blocks.gateways import processes
from dsec_workers.clusters.local.loop import Loop


def stand_apart(*, log: Path, keep: Collection[int], new_session: bool = False) -> None:
    """In a forked child: an own process group (or session), own output, no descriptor of the parent but `keep`."""
    if new_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python interpreter starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes.redirect_output(log)
    processes.close_descriptors(keep=keep)


def fork_with_line(loop: Loop, be: Callable[[socket.socket], int], *, at: str) -> tuple[int, socket.socket]:
    """Fork a child that leads a group of its own and runs `be` with its end of a line; its pid, and our end."""
    ours, theirs = socket.socketpair()
    pid = processes.fork(at=at)
    if pid == 0:
        loop.leave_in_child()
        leave(exit_code_of(lambda: be(theirs)))
    theirs.close()
    own_group(pid)
    return pid, ours


def own_group(pid: int) -> None:
    """In the parent: the child `pid` leads a group of its own.

    The child does the same; whoever is first, a signal to the group finds it.
    """
    with suppress(OSError):
        os.setpgid(pid, pid)


def take_environment(env: Mapping[str, str]) -> None:
    """Replace the whole environment: nothing of the fork-server's may leak into user code."""
    os.environ.clear()
    os.environ.update(env)


def exit_code_of(body: Callable[[], int]) -> int:
    """Run `body`; what an interpreter would exit with if it were the main program."""
    try:
        return body()
    except SystemExit as exit_request:
        code = exit_request.code
        if code is None or isinstance(code, int):
            return code or 0
        print(code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - the last frame of the process: whatever it is ends here
        traceback.print_exc()
        return 1


def leave(code: int) -> NoReturn:
    """End this forked process as an interpreter ends: threads, exit hooks, buffers; never the parent's frames."""
    try:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # joins non-daemon threads, as Py_Finalize does
        with suppress(BaseException):
            atexit._run_exitfuncs()
        with suppress(BaseException):
            logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
    finally:
        os._exit(code & 0xFF)
