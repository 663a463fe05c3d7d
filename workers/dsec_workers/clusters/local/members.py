"""The gang's members as their supervisor sees them: who has its devices, who was let go, who has ended."""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsec_blocks.gateways import processes
from dsec_workers.clusters.local import children
from dsec_workers.clusters.local.loop import Lines, Loop


@dataclass(kw_only=True)
class MemberState:
    """One member's process."""

    pid: int
    line: Lines
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

    @property
    def pids(self) -> set[int]:
        """Those that run."""
        return {member.pid for member in self._states.values() if member.exit is None}

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
                member.line.close()
                return index
        return None

    def release(self) -> None:
        """Have every member let go of its devices and leave."""
        for member in self._states.values():
            member.is_released = True
            member.line.send({"op": "release"})

    def stop_waiting(self) -> None:
        """SIGTERM to those that are blocked on their devices' locks; the others do not hear it."""
        for member in self.unready.values():
            if member.exit is None:
                processes.signal_group(member.pid, signal.SIGTERM, at="supervisor.waiting_member.term")


def _ignore(_line: Lines) -> None:
    return None
