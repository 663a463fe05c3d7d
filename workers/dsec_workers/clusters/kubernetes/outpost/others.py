"""The gang's members in other pods, as member 0's outpost sees them: called on, enlisted, listened to.

A member that cannot be reached yet is called on again; one whose line breaks is lost, and the gang with it: nobody can
tell a dead node from a cut cable, and a gang without a member makes no step.
"""

import base64
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_workers.clusters.kubernetes.outpost.door import Dial
from dsec_workers.clusters.local.loop import Lines
from dsec_workers.clusters.local.supervisor import Supervisor

_AGAIN_SECONDS = 0.2
LARGEST_CALL_BYTES = 11 * 2**20
"""Of a pickled function and its arguments, so that the line that carries it stays below the limit of a message."""


class Others:
    """All members elsewhere."""

    def __init__(self, supervisor: Supervisor, *, token: str, port: int, address: str) -> None:
        self._gang, self._token, self._port, self._address = supervisor, token, port, address
        self._addresses: dict[int, str] = {}
        self._calling: set[int] = set()
        self._lines: dict[int, Lines] = {}

    @property
    def waiting_for(self) -> list[int]:
        """Members that have not joined."""
        return [i for i in range(1, len(self._gang.order.placement.members)) if i not in self._lines]

    def introduce(self, addresses: Mapping[int, str]) -> None:
        """Hear where members are; whoever has not joined is called on."""
        for index, address in addresses.items():
            if index in self.waiting_for:
                self._addresses[index] = address
                self._call_on(index)

    def _call_on(self, index: int) -> None:
        if index in self._calling or index in self._lines or self._gang.is_ending:
            return
        self._calling.add(index)
        Dial(self._gang.loop, self._addresses[index], self._port, lambda connection: self._met(index, connection))

    def _met(self, index: int, connection: socket.socket | None) -> None:
        if connection is None:
            self._calling.discard(index)
            self._gang.loop.after(_AGAIN_SECONDS, lambda: self._call_on(index))
            return
        line = Lines(
            self._gang.loop,
            connection,
            on_message=lambda line, message: self._heard(index, line, message),
            on_close=lambda _: self._lost(index),
        )
        order = self._gang.order
        line.send(
            {
                "token": self._token,
                "as": "leader",
                **gang_protocol.told(),
                "port": self._port,
                "address": self._address,
                "attempt": order.key.attempt,
                "member": index,
                "placement": order.placement.to_json(),
            }
        )

    def _heard(self, index: int, line: Lines, message: dict[str, Any]) -> None:
        if index not in self._lines:
            self._answered(index, line, message)
            return
        match message["op"]:
            case "member_exit":
                self._gang.member_left(index, int(message["exit"]))
            case "leaving":
                self._leave(index, message["notice"])
            case _:
                self._gang.member_said(index, message)

    def _leave(self, index: int, notice: dict[str, Any]) -> None:
        """A member was told to stop from outside: all leave, unless they are leaving already."""
        if self._gang.notice.current is None and not self._gang.is_ending:
            self._gang.give_notice({**notice, "reason": f"member {index}: {notice['reason']}"})

    def _answered(self, index: int, line: Lines, message: dict[str, Any]) -> None:
        if not message.get("ok"):
            self._gang.fail_start(f"member {index}: {message.get('error')}")
            line.close()
            return
        self._lines[index] = line
        if not self._gang.member_joined(index, _Orders(line), tuple(message["devices"])):
            line.send({"op": "release"})

    def _lost(self, index: int) -> None:
        self._calling.discard(index)
        if index in self._lines:
            self._gang.member_left(index, -signal.SIGKILL)
        else:
            self._gang.loop.after(_AGAIN_SECONDS, lambda: self._call_on(index))


class _Orders:
    """The line on which a member elsewhere is told what to do: what it must read travels along."""

    def __init__(self, line: Lines) -> None:
        self._line = line

    def send(self, message: dict[str, Any]) -> None:
        """Tell it one thing."""
        if message["op"] == "run" and message["call"].get("kind") == "function":
            call = message["call"]
            content = base64.b64encode(Path(call["path"]).read_bytes()).decode()
            message = {**message, "call": {**call, "content": content}}
        self._line.send(message)

    def close(self) -> None:
        """The member has ended; its line ends with its outpost."""
