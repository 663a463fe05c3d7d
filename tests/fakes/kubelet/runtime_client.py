"""The kubelet's end of the channel to the runtime: containers' processes as things one can await."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path


class Refused(Exception):
    """The process could not be started; the message is the runtime's."""


class Process:
    """PID 1 of a container that was started."""

    def __init__(self, client: "RuntimeClient", name: str, pid: int) -> None:
        self._client, self._name = client, name
        self.pid = pid
        self._ended = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        """Whether the container has ended, with all of its processes."""
        return self._ended.done()

    async def wait(self) -> int:
        """The exit status of PID 1, negative for a signal; all processes of the container are gone then."""
        return await asyncio.shield(self._ended)

    def signal(self, signum: int) -> None:
        """Send a signal to PID 1; it gets those it has a handler for, and SIGKILL."""
        if not self.has_ended:
            self._client.send({"op": "signal", "id": self._name, "signum": int(signum)})

    def end(self, status: int) -> None:
        """Called by the client."""
        if not self._ended.done():
            self._ended.set_result(status)


class RuntimeClient:
    """Starts processes; `run` has to be running."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._numbers = count()
        self._writer: asyncio.StreamWriter | None = None
        self._starting: dict[str, asyncio.Future[Process]] = {}
        self._running: dict[str, Process] = {}

    async def connect(self) -> asyncio.StreamReader:
        """Take the channel over."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
        return reader

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Hear what the runtime says, until it ends."""
        while line := await reader.readline():
            message = json.loads(line)
            name = message["id"]
            match message["op"]:
                case "started":
                    process = self._running[name] = Process(self, name, message["pid"])
                    self._starting.pop(name).set_result(process)
                case "refused":
                    self._starting.pop(name).set_exception(Refused(message["why"]))
                case "ended":
                    self._running.pop(name).end(message["exit"])

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, locks: Sequence[Path] = ()
    ) -> Process:
        """Start a container's PID 1, or a probe.

        Raises `Refused` when it cannot be executed or a device's lock is held elsewhere.
        """
        name = str(next(self._numbers))
        started = self._starting[name] = asyncio.get_running_loop().create_future()
        self.send(
            {
                "op": "start",
                "id": name,
                "argv": list(argv),
                "env": dict(env),
                "cwd": str(cwd),
                "log": str(log),
                "locks": [str(path) for path in locks],
            }
        )
        return await asyncio.shield(started)

    def send(self, order: Mapping[str, object]) -> None:
        """Give the runtime an order."""
        assert self._writer is not None
        self._writer.write(json.dumps(order).encode() + b"\n")
