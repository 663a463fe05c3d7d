"""The gang's members as their supervisor sees them: who has its devices, who was let go, who has ended.

Most are forked here. One *elsewhere* is in another pod: it joins over a line of its own, and what would be a signal to
a process here is a message on that line.
"""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dsec_blocks.gateways import processes
from dsec_workers.clusters.local import children
from dsec_workers.clusters.local.loop import Lines, Loop


class Line(Protocol):
    """Where a member hears what it is to do."""

    def send(self, message: dict[str, Any]) -> None:
        """Tell it one thing; a closed line swallows it."""

    def close(self) -> None:
        """Hang up."""


@dataclass(kw_only=True)
class MemberState:
    """One member's process. `pid` None is a member elsewhere, `line` None one that has not joined yet."""

    pid: int | None
    line: Line | None
    is_ready: bool = False
    """It holds its devices."""
    is_denied: bool = False
    """It could not get one of them."""
    is_released: bool = False
    exit: int | None = None


class Members:
    """All members of one gang, by index."""

    def __init__(self, loop: Loop, *, on_message: Callable[[int, dict[str, Any]], None]) -> None:
        self._loop = loop
        self._on_message = on_message
        self._states: dict[int, MemberState] = {}

    def __getitem__(self, index: int) -> MemberState:
        return self._states[index]

    def fork(self, index: int, be: Callable[[socket.socket], int]) -> None:
        """Fork member `index`, which runs `be` with its end of the line."""
        pid, ours = children.fork_with_line(self._loop, be, at="supervisor.member.fork")
        line = Lines(self._loop, ours, on_message=lambda _, message: self._on_message(index, message), on_close=_ignore)
        self._states[index] = MemberState(pid=pid, line=line)

    def expect(self, index: int) -> None:
        """Member `index` will join from elsewhere."""
        self._states[index] = MemberState(pid=None, line=None)

    def joined(self, index: int, line: Line) -> bool:
        """Member `index` is there; False when it is not wanted (any more)."""
        member = self._states.get(index)
        if member is None or member.pid is not None or member.exit is not None or member.line is not None:
            return False
        member.line = line
        return True

    def left(self, index: int, status: int) -> bool:
        """Member `index` elsewhere has ended; False when that is no news."""
        member = self._states[index]
        if member.exit is not None:
            return False
        member.exit = status
        if member.line is not None:
            member.line.close()
        return True

    def tell_elsewhere(self, message: dict[str, Any]) -> None:
        """Tell all that are elsewhere."""
        for member in self._states.values():
            if member.pid is None and member.line is not None and member.exit is None:
                member.line.send(message)

    @property
    def pids(self) -> set[int]:
        """Those that run here."""
        return {member.pid for member in self._states.values() if member.exit is None and member.pid is not None}

    @property
    def unready(self) -> dict[int, MemberState]:
        """Those that have not got their devices (yet)."""
        return {index: member for index, member in self._states.items() if not member.is_ready}

    @property
    def are_leaving(self) -> bool:
        """Whether the devices are being let go."""
        return any(member.is_released for member in self._states.values())

    @property
    def have_ended(self) -> bool:
        """Whether no member runs."""
        return all(member.exit is not None for member in self._states.values())

    @property
    def exits(self) -> dict[str, int | None]:
        """Index → exit status."""
        return {str(index): member.exit for index, member in self._states.items()}

    def ended(self, pid: int, status: int) -> int | None:
        """Take down that `pid` has ended; the index of the member that it was, if any."""
        for index, member in self._states.items():
            if member.pid == pid:
                member.exit = status
                if member.line is not None:
                    member.line.close()
                return index
        return None

    def release(self) -> None:
        """Have every member let go of its devices and leave."""
        for member in self._states.values():
            member.is_released = True
            if member.line is not None:
                member.line.send({"op": "release"})

    def stop_waiting(self) -> None:
        """SIGTERM to those that are blocked on their devices' locks; the others do not hear it.

        Who has not joined yet never will.
        """
        for member in self.unready.values():
            if member.exit is not None:
                continue
            if member.pid is None and member.line is None:
                member.exit = -signal.SIGTERM
            elif member.line is not None and member.pid is None:
                member.line.send({"op": "stop_waiting"})
            elif member.pid is not None:
                processes.signal_group(member.pid, signal.SIGTERM, at="supervisor.waiting_member.term")


def _ignore(_line: Lines) -> None:
    return None
