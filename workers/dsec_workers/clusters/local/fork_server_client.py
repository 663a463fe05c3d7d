"""The worker's hold on its home's fork-server: there for a launch, replaced when it is old, gone at the end."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.processes import ProcessId
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.local import talk
from dsec_workers.clusters.local.forkserver import IS_SERVED, SOCKET_NAME, fingerprint, record_of
from dsec_workers.clusters.local.layout import read_json, socket_path

_START_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
_ASK_AGAIN_SECONDS = 0.5


class ForkServer:
    """The fork-server of one home, which may die at any time."""

    def __init__(self, *, home: Path, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._changing = asyncio.Lock()

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the answer. Raises `ClusterError`."""
        return await talk.call(socket_path(self._home, SOCKET_NAME), message, timeout_seconds=_ANSWER_SECONDS)

    async def ensure(self) -> None:
        """Have one that runs this very code. Raises `ClusterError` when it does not start."""
        async with self._changing:
            found = await self._hello()
            if found == fingerprint():
                return
            if found is not None:
                await self._kill()  # it runs older code than we do; supervisors do not mind
            await self._start()

    async def stop(self) -> None:
        """Kill it, and whatever was forked from it and is known to no record."""
        async with self._changing:
            await self._kill()
            await self._sweep()

    async def _start(self) -> None:
        deadline = self._clock.monotonic() + _START_SECONDS
        log = self._home / "fork-server.log"
        argv = [sys.executable, "-P", *_words(self._home)]
        pid: int | None = None
        while self._clock.monotonic() < deadline:
            if pid is None:
                pid = processes.spawn(argv, env=os.environ, output=log, at="cluster.forkserver.spawn")
            if await self._hello() is not None:
                return
            status = _exit_status(pid)
            if status == IS_SERVED:  # by one that is still starting, and whose worker has died
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
                if await self._hello() is not None:
                    return
                pid = None
            elif status is not None and await self._hello() is None:
                raise ClusterError(f"the fork-server of {self._home} ended while starting; its last words are in {log}")
            await asyncio.sleep(0.05)
        raise ClusterError(f"the fork-server of {self._home} did not start within {_START_SECONDS:g} s; see {log}")

    async def _hello(self) -> str | None:
        try:
            answer = await self.ask({"op": "hello"})
        except ClusterError:
            return None
        return str(answer["fingerprint"])

    async def _kill(self) -> None:
        record = read_json(record_of(self._home))
        if record is None:
            return
        process = ProcessId.from_json(record["process"])
        processes.signal_process(process, signal.SIGKILL, at="cluster.forkserver.kill")
        while processes.is_alive(process):  # noqa: ASYNC110 - nothing tells but the process table
            await asyncio.sleep(0.01)
        _exit_status(process.pid)
        # Its record stays until the next one's replaces it: a worker that sleeps here would remove the next one's.

    async def _sweep(self) -> None:
        """A fork-server that was just starting has no record yet, but its command line names the home."""
        words = _words(self._home)
        while True:
            found = [
                row.pid
                for row in processes.processes()
                if not row.is_zombie and processes.command_line(row.pid)[-len(words) :] == words
            ]
            if not found:
                return
            processes.signal_all(found, signal.SIGKILL, at="cluster.sweep.kill")
            await asyncio.sleep(0.02)


def _words(home: Path) -> list[str]:
    """The command line of a home's fork-server, and of everything that was forked from it."""
    return ["-m", "dsec_workers.clusters.local", str(home)]


def _exit_status(pid: int) -> int | None:
    """What a child of ours ended with, collected so that it does not stay a zombie; None while it lives.

    A stranger that is gone has ended well: nobody told us more.
    """
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0 if processes.sighting(pid) is None else None
    return os.waitstatus_to_exitcode(status) if ended == pid else None
