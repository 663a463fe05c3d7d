"""The process that forks containers, and the reason why nothing stays behind: it outlives whoever gives it orders.

When the other end of its channel closes, by a good end or by kill -9, it kills every descendant it has. When it dies
itself, the kernel tells each shim (`PR_SET_PDEATHSIG`). It is single-threaded, because it forks.
"""

import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from tests.fakes.kubelet import forked, shim

KUBELET_LEAVES_SECONDS = 5.0


class _Stop(BaseException):
    """Somebody asked the whole stand-in to end."""


class Runtime:
    """Takes orders from `channel`: `start`, `signal`; says `started`, `refused`, `ended`."""

    def __init__(self, channel: socket.socket, *, kubelet: int) -> None:
        self._channel = channel
        self._kubelet = kubelet
        self._orders = b""
        self._selector = selectors.DefaultSelector()
        self._shims: dict[int, _Shim] = {}
        """By the descriptor they report on."""
        self._first: dict[str, tuple[int, int]] = {}
        """PID 1 and its shim, by the container's id."""

    def serve(self) -> None:
        """Until the channel closes or a signal comes; then nothing is left."""
        processes.adopt_orphans()
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        try:
            self._selector.register(self._channel, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._channel:
                        if not self._listen():
                            return
                    else:
                        self._hear(key.fd)
        except _Stop:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._channel.close()
            self._bury()

    def _listen(self) -> bool:
        content = self._channel.recv(1 << 16)
        self._orders += content
        *lines, self._orders = self._orders.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["op"] == "start":
                self._start(order)
            else:
                self._signal(order["id"], order["signum"])
        return bool(content)

    def _start(self, order: dict[str, Any]) -> None:
        if forked.can_fork(order["argv"], order["env"]):
            forked.import_it()
        report, its_report = os.pipe()
        runtime = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._channel.close()
            shim.run_container(order, its_report, runtime)
        os.close(its_report)
        self._shims[report] = _Shim(order["id"], pid)
        self._selector.register(report, selectors.EVENT_READ)

    def _hear(self, report: int) -> None:
        told = self._shims[report]
        content = os.read(report, 1 << 16)
        told.said += content
        *lines, told.said = told.said.split(b"\n")
        for line in lines:
            message = json.loads(line)
            told.outcome.update(message)
            if "pid" in message:
                self._first[told.container] = (message["pid"], told.pid)
                self._say({"op": "started", "id": told.container, "pid": message["pid"]})
        if content:
            return
        self._selector.unregister(report)
        os.close(report)
        del self._shims[report]
        self._first.pop(told.container, None)
        os.waitpid(told.pid, 0)  # after this its locks are free
        if "pid" in told.outcome:
            # A shim that was killed says nothing; its container died with it.
            self._say({"op": "ended", "id": told.container, "exit": told.outcome.get("exit", -signal.SIGKILL)})
        else:
            self._say({"op": "refused", "id": told.container, "why": told.outcome.get("refused", "the shim ended")})

    def _signal(self, container: str, signum: int) -> None:
        first, its_shim = self._first.get(container, (0, 0))
        found = processes.sighting(first) if first else None
        if found is None or found.parent != its_shim or found.is_zombie:
            return
        if signum == signal.SIGKILL or _handles(first, signum):
            with suppress(ProcessLookupError):
                os.kill(first, signum)

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _bury(self) -> None:
        deadline = time.monotonic() + KUBELET_LEAVES_SECONDS
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return
            is_late = time.monotonic() > deadline
            for row in processes.descendants([os.getpid()]):
                if row.pid != self._kubelet or is_late:
                    with suppress(ProcessLookupError):
                        os.kill(row.pid, signal.SIGKILL)
            time.sleep(0.01)


class _Shim:
    def __init__(self, container: str, pid: int) -> None:
        self.container = container
        self.pid = pid
        self.said = b""
        self.outcome: dict[str, Any] = {}


def _handles(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal: without one, PID 1 of a pid namespace does not even get it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signum - 1) & 1)


def _stop(_signum: int, _frame: object) -> None:
    raise _Stop
