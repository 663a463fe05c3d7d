"""The process gateway: starting, finding and signalling processes, each effect at a named fault point.

A process is known by pid, start time and boot id, never by its pid alone: pids are given again, and a signal sent to
the wrong process cannot be taken back. Signals therefore go through a pidfd that was opened before the check.
Linux only: everything here reads /proc.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec_blocks.gateways.faults import fault_point

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process, for good: `start_time` is in clock ticks since boot, `boot_id` changes with every boot."""

    pid: int
    start_time: int
    boot_id: str

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {"pid": self.pid, "start_time": self.start_time, "boot_id": self.boot_id}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ProcessId":
        """The process that `to_json` wrote."""
        return cls(pid=fields["pid"], start_time=fields["start_time"], boot_id=fields["boot_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One process as the process table shows it now."""

    pid: int
    parent: int
    group: int
    session: int
    start_time: int
    is_zombie: bool


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sighting(pid: int) -> Sighting | None:
    """The process table's row for `pid`, or None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold anything, parentheses included.
    state, parent, group, session, *rest = text[text.rindex(")") + 2 :].split()
    return Sighting(
        pid=pid,
        parent=int(parent),
        group=int(group),
        session=int(session),
        start_time=int(rest[15]),
        is_zombie=state in "ZX",
    )


def processes() -> Iterator[Sighting]:
    """Every process there is, zombies included."""
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            found = sighting(int(entry))
            if found is not None:
                yield found


def identify(pid: int) -> ProcessId:
    """The full identity of a running process.

    Raises `ProcessLookupError` when there is none.
    """
    found = sighting(pid)
    if found is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return ProcessId(pid=pid, start_time=found.start_time, boot_id=boot_id())


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs: same pid, same start, same boot, and not a zombie."""
    found = sighting(process.pid)
    return (
        found is not None
        and not found.is_zombie
        and found.start_time == process.start_time
        and process.boot_id == boot_id()
    )


def descendants(pids: Collection[int], *, among: Collection[Sighting] | None = None) -> list[Sighting]:
    """Children, grandchildren … of `pids` that run now (zombies left out), whatever session they moved to."""
    table = list(processes()) if among is None else among
    children: dict[int, list[Sighting]] = {}
    for row in table:
        children.setdefault(row.parent, []).append(row)
    found, queue = [], list(pids)
    while queue:
        for row in children.pop(queue.pop(), []):
            queue.append(row.pid)
            if not row.is_zombie:
                found.append(row)
    return found


def children(pid: int) -> set[int] | None:
    """The children that a process has now, zombies included; None where the kernel does not tell.

    A tenth of the price of the process table. Of a list whose members end while it is read, some may be missing.
    """
    found: set[int] = set()
    try:
        for task in os.listdir(_PROC / str(pid) / "task"):
            found.update(map(int, (_PROC / str(pid) / "task" / task / "children").read_text().split()))
    except (OSError, ValueError):
        return None
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment a process was *executed* with (a forked child shows its parent's); empty if not readable."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    return dict(item.decode(errors="replace").split("=", 1) for item in raw.split(b"\0") if b"=" in item)


def command_line(pid: int) -> list[str]:
    """The words a process was executed with (a forked child shows its parent's); empty if not readable."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in raw.removesuffix(b"\0").split(b"\0")]


def open_files(pid: int) -> dict[int, str]:
    """What the descriptors of a process point to; empty if not readable."""
    found = {}
    with suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                found[int(entry.name)] = str(entry.readlink())
    return found


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def fork(*, at: str) -> int:
    """Fork; 0 in the child. Only the parent passes the second half of the fault point."""
    point = fault_point(at)
    point.__enter__()
    pid = os.fork()
    if pid:
        point.__exit__(None, None, None)
    return pid


def spawn(argv: Sequence[str], *, env: Mapping[str, str], output: Path, at: str) -> int:
    """Start a program in a session of its own, its output appended to `output`; returns its pid.

    The program outlives its starter; when it ends before, it is a zombie until the starter calls `reap`.
    """
    with fault_point(at):
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            started = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
    started.returncode = 0  # Popen would warn about a child that is still running when it is collected
    return started.pid


def spawn_held(argv: Sequence[str], *, env: Mapping[str, str], output: Path, at: str) -> tuple[int, Callable[[], None]]:
    """As `spawn`, but the program begins only when the function that comes with its pid is called.

    If the starter dies before, there is no program: nothing runs that nobody has written down.
    """
    with fault_point(at):
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            started = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "held", *argv],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
    gate = started.stdin
    assert gate is not None
    started.returncode = 0  # as in `spawn`

    def release() -> None:
        with suppress(BrokenPipeError), gate:
            gate.write(b"go\n")

    return started.pid, release


def run(argv: Sequence[str], *, env: Mapping[str, str], at: str) -> int:
    """Run a program to its end, in our session and with our output; returns its exit status (negative: a signal).

    Raises `OSError` when the program cannot be executed.
    """
    with fault_point(at):
        return subprocess.run(list(argv), env=dict(env), check=False).returncode


def output_of(argv: Sequence[str], *, seconds: float, at: str) -> tuple[int, bytes, bytes] | None:
    """Run a program to its end: exit status, stdout and stderr; None when it had to be killed after `seconds`.

    A program stuck in the kernel cannot even be killed; it is left behind rather than waited for.
    """
    with fault_point(at):
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1.0)
            return None
    return child.returncode, out, err


def execute(argv: Sequence[str], env: Mapping[str, str], *, at: str) -> None:
    """Become another program, found on `env`'s PATH. Returns never.

    Raises `OSError` when the program cannot be executed.
    """
    with fault_point(at):
        os.execvpe(argv[0], list(argv), dict(env))


def reap() -> dict[int, int]:
    """Every child that has ended, with its exit status (negative: killed by that signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def signal_process(process: ProcessId, signum: int, *, at: str) -> bool:
    """Send a signal to this very process; False when it has ended."""
    with fault_point(at):
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            if not is_alive(process):
                return False
            signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
    return True


def signal_group(group: int, signum: int, *, at: str) -> bool:
    """Send a signal to every process of a group; False when it has none.

    Only for groups whose leader the caller has not reaped yet, or whose members it can see: a group's number is not
    given again while a process is in it.
    """
    with fault_point(at):
        try:
            os.killpg(group, signum)
        except ProcessLookupError:
            return False
    return True


def signal_all(pids: Collection[int], signum: int, *, at: str) -> None:
    """Send a signal to each of `pids`, as sighted a moment ago; those that have ended are skipped."""
    with fault_point(at):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)


def hold_lock(path: Path, *, blocking: bool, at: str) -> int | None:
    """An exclusive lock on `path` that lasts as long as a descriptor to it is open in any process.

    Returns the descriptor, which forked children share; None when not `blocking` and somebody else holds it.
    """
    with fault_point(at):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if blocking else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def redirect_output(path: Path) -> None:
    """Send this process's stdout and stderr, line by line, to the end of `path`, and read nothing."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in (log, nothing):
        if descriptor > 2:
            os.close(descriptor)
    # What was buffered before the fork is the parent's to write.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def close_descriptors(*, keep: Collection[int]) -> None:
    """Let go of every descriptor above stderr but `keep`: what a forked child must not hold of its parent's.

    Each number is taken by /dev/null instead of being freed: the parent's socket and file objects still exist in the
    child, and when one is collected it closes its number, which by then would be somebody else's file.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for entry in os.listdir("/proc/self/fd"):
        descriptor = int(entry)
        if descriptor > 2 and descriptor != nothing and descriptor not in keep:
            with suppress(OSError):
                os.fstat(descriptor)  # the listing's own is closed by now, and must not be taken
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def complete(argv: Sequence[str], *, env: Mapping[str, str], at: str) -> tuple[int, bytes]:
    """Run a program to its end; its exit status and everything it printed."""
    with fault_point(at):
        done = subprocess.run(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode, done.stdout
