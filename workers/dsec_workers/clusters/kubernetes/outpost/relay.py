"""The gang channel in a pod that has no supervisor: a unix socket whose every connection goes on to member 0.

What is said passes unchanged, but for one thing: a snapshot that was spooled here is brought to member 0's spool
before that is told there, since only a whole checkpoint can be committed.
"""

import socket
from collections.abc import Callable
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_workers.clusters.kubernetes.outpost.door import Dial
from dsec_workers.clusters.local.loop import Lines, Loop

Deliver = Callable[[dict[str, Any], Callable[[bool], None]], None]


class Relay:
    """Listens on the pod's unix socket."""

    def __init__(
        self, loop: Loop, listener: socket.socket, *, to: tuple[str, int], token: str, deliver: Deliver
    ) -> None:
        self._loop, self._listener, self._to, self._token, self._deliver = loop, listener, to, token, deliver
        listener.setblocking(False)
        loop.watch(listener.fileno(), lambda _: self._accept())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        _Passage(self._loop, connection, to=self._to, token=self._token, deliver=self._deliver)


class _Passage:
    """One connection here and its other half there."""

    def __init__(
        self, loop: Loop, connection: socket.socket, *, to: tuple[str, int], token: str, deliver: Deliver
    ) -> None:
        self._loop, self._token, self._deliver = loop, token, deliver
        self._waiting: list[dict[str, Any]] = []
        self._far: Lines | None = None
        self._is_let_in = False
        self._near = Lines(loop, connection, on_message=self._said_here, on_close=lambda _: self._close())
        Dial(loop, *to, self._connected)

    def _connected(self, connection: socket.socket | None) -> None:
        if connection is None:
            self._near.close()
            return
        self._far = Lines(self._loop, connection, on_message=self._said_there, on_close=lambda _: self._close())
        self._far.send({"token": self._token, "as": "channel", **gang_protocol.told()})

    def _said_here(self, _line: Lines, message: dict[str, Any]) -> None:
        if message.get("op") == "spooled":
            self._deliver(message, lambda arrived: self._delivered(message, arrived))
        else:
            self._pass_on(message)

    def _delivered(self, message: dict[str, Any], arrived: bool) -> None:
        if arrived:
            self._pass_on(message)
            return
        error = "the snapshot could not be brought to member 0's pod; it is in this pod's spool"
        self._near.send({"id": message.get("id"), "ok": False, "error": error})

    def _pass_on(self, message: dict[str, Any]) -> None:
        if self._is_let_in and self._far is not None:
            self._far.send(message)
        else:
            self._waiting.append(message)

    def _said_there(self, line: Lines, message: dict[str, Any]) -> None:
        if self._is_let_in:
            self._near.send(message)
            return
        self._is_let_in = True
        for waiting in self._waiting:
            line.send(waiting)
        self._waiting.clear()

    def _close(self) -> None:
        for half in (self._near, self._far):
            if half is not None:
                half.close()
