"""An outpost's door: who connects says first who it is, with the gang's token, and waits to be let in.

    {"token": …, "as": "channel" | "leader" | "parcel", "protocol": …, …}   →   {"ok": true, "protocol": …, …}

After that the connection belongs to whoever serves that kind. A wrong token is told nothing and shut out.
"""

import errno
import hmac
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.local.loop import Lines, Loop

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
"""How long a caller may take to say who it is."""

Admit = Callable[[socket.socket, dict[str, Any]], Mapping[str, Any] | None]
"""Called with the connection and the greeting; what it returns is answered, None says: it answers by itself."""


class Door:
    """Listens on the pod's address. `kinds` maps what a caller may come as to who serves it."""

    def __init__(self, *, address: str, port: int, token: str) -> None:
        self._token = token
        self._kinds: Mapping[str, Admit] = {}
        self._listener = socket.create_server((address, port), backlog=256)
        self._listener.setblocking(False)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def open(self, loop: Loop, kinds: Mapping[str, Admit]) -> None:
        """Let callers in from now on; those that came before have waited."""
        self._loop, self._kinds = loop, kinds
        loop.watch(self._listener.fileno(), lambda _: self._accept())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Lines(self._loop, connection, on_message=self._greeted, on_close=lambda _: None)
        self._loop.after(_PATIENCE_SECONDS, lambda: line.close() if not line.is_detached else None)

    def _greeted(self, line: Lines, greeting: dict[str, Any]) -> None:
        admit = self._kinds.get(str(greeting.get("as")))
        if admit is None or not hmac.compare_digest(str(greeting.get("token")), self._token):
            line.close()
            return
        connection = line.detach()
        try:
            answer = admit(connection, greeting)
        except ClusterError as error:
            connection.setblocking(True)
            say(connection, {"ok": False, "error": str(error)})
            connection.close()
            return
        if answer is not None:
            say(connection, {"ok": True, **gang_protocol.told(greeting), **answer})


def say(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one short line; a connection that is broken swallows it."""
    with suppress(OSError):
        connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def knock(
    address: str, port: int, greeting: Mapping[str, Any], *, timeout: float = CONNECT_SECONDS
) -> tuple[socket.socket, dict[str, Any]]:
    """Connect to an outpost's door and be let in: the connection and the answer. Blocks; for children and threads.

    Raises `ClusterError` when nobody opens.
    """
    where = f"{address}:{port}"
    try:
        connection = socket.create_connection((address, port), timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(ANSWER_SECONDS)
        say(connection, greeting)
        return connection, read_answer(connection, where)
    except OSError as error:
        raise ClusterError(f"the outpost at {where} does not answer: {error}") from error


def read_answer(connection: socket.socket, where: str) -> dict[str, Any]:
    """One line, read byte by byte, since what follows is somebody else's.

    Raises `ClusterError` when it is a refusal or never comes.
    """
    received = bytearray()
    while not received.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ClusterError(f"the outpost at {where} hung up: is the gang's key the same on both sides?")
        received += byte
    answer: dict[str, Any] = json.loads(received)
    if not answer.get("ok"):
        raise ClusterError(f"{where}: {answer.get('error')}")
    return answer


class Dial:
    """A connection on its way, without ever blocking the loop; `then` gets it, or None when there is none."""

    def __init__(self, loop: Loop, address: str, port: int, then: Callable[[socket.socket | None], None]) -> None:
        self._loop, self._then = loop, then
        self._connection: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._connection.setblocking(False)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self._connection.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS):
            loop.watch(self._connection.fileno(), lambda _: self._settled(), writing=True)
            loop.after(CONNECT_SECONDS, self._give_up)
        else:
            loop.soon(self._give_up)

    def _settled(self) -> None:
        if self._connection is None:
            return
        code = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._give_up()
            return
        connection, self._connection = self._connection, None
        self._loop.unwatch(connection.fileno())
        self._then(connection)

    def _give_up(self) -> None:
        if self._connection is None:
            return
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._connection = None
        self._then(None)
