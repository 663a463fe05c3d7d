"""Named fault points: where a durable effect can be made to fail, on purpose, in a test.

Every durable effect passes one of five gateways (ledger transaction, file system, object store, Prefect API,
cluster), each call with a literal name. `DSEC_FAULT="checkpoint.head.write:kill_after"` then kills the process right
after that effect, so the crash suite can be generated from the names instead of from somebody's imagination.

Modes: `kill_before`, `kill_after` (SIGKILL to the own process), `error` (fails, not applied), `lost` (applied, the
answer is lost), `stall` (SIGSTOP before the effect: whoever sends SIGCONT resumes a zombie). A third part counts:
`point:mode:2` strikes at the second visit of a process only. With `DSEC_FAULT_ONCE=DIRECTORY` a fault strikes once
over all processes together, so that whoever recovers does not fall into the same hole again.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from dsec_blocks.model.names import ENV_FAULT

MODES = ("kill_before", "kill_after", "lost", "error", "stall")
ENV_FAULT_LOG = "DSEC_FAULT_LOG"
"""A file that gets the name of every point passed, one a line: how the suite proves that each was reached."""
ENV_FAULT_ONCE = "DSEC_FAULT_ONCE"


class InjectedError(OSError):
    """An effect that was made to fail, or whose answer was made to be lost."""


@dataclass(frozen=True, slots=True)
class _Fault:
    mode: str
    visit: int


_visits: dict[str, int] = {}
_lock = Lock()


@contextmanager
def fault_point(name: str) -> Iterator[None]:
    """Surround one durable effect; strike if this point is armed.

    Raises `InjectedError` in the modes `error` (before the effect) and `lost` (after it).
    """
    armed = os.environ.get(ENV_FAULT)
    log = os.environ.get(ENV_FAULT_LOG)
    if armed is None and log is None:
        yield
        return
    with _lock:
        _visits[name] = visit = _visits.get(name, 0) + 1
    if log is not None:
        _append(log, name)
    fault = _armed(armed or "").get(name)
    mode = fault.mode if fault is not None and fault.visit in (0, visit) and _first_strike(name) else None
    if mode == "kill_before":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "stall":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif mode == "error":
        raise InjectedError(f"injected at {name}: not applied")
    yield
    if mode == "kill_after":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "lost":
        raise InjectedError(f"injected at {name}: applied, answer lost")


def _armed(text: str) -> dict[str, _Fault]:
    faults = {}
    for item in filter(None, text.split(",")):
        name, mode, *visit = item.split(":")
        if mode not in MODES:
            raise ValueError(f"{ENV_FAULT}: {mode!r} is not one of {', '.join(MODES)}")
        faults[name] = _Fault(mode, int(visit[0]) if visit else 0)
    return faults


def _first_strike(name: str) -> bool:
    directory = os.environ.get(ENV_FAULT_ONCE)
    if directory is None:
        return True
    try:
        os.close(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _append(path: str, name: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{name}\n".encode())
    finally:
        os.close(descriptor)
