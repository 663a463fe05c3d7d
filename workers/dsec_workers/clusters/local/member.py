"""A member: the part of a gang on one node. It holds the node's device locks for its life and starts the ranks there.

It has its own process group and no will of its own: the supervisor tells it what to run and when to let go. If the
supervisor dies, it stops its ranks and leaves, so that the devices become free.
"""

import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import children, rank
from dsec_workers.clusters.local.loop import Lines, Loop

_ORPHAN_GRACE_SECONDS = 2.0


@dataclass(kw_only=True)
class Member:
    """Member `index` of a gang, in its own process."""

    index: int
    devices: tuple[str, ...]
    locks_directory: Path
    gang: Path
    blocking: bool
    _locks: list[int] = field(default_factory=list)
    _ranks: dict[int, int] = field(default_factory=dict)
    """pid → rank"""

    def serve(self, control: socket.socket) -> int:
        """Take the locks, say so, then do as told until let go; returns the exit code."""
        control.setblocking(True)
        for uuid in sorted(self.devices):
            path = self.locks_directory / f"{uuid}.lock"
            lock = processes.hold_lock(path, blocking=self.blocking, at="member.lock")
            if lock is None:
                control.sendall(b'{"op":"denied","device":"%s"}\n' % uuid.encode())
                return 1
            self._locks.append(lock)
        # From here on the supervisor decides: a SIGTERM to the group is meant for the ranks, which reset this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._loop = Loop(clock=SystemClock(), on_child_exit=self._rank_ended)
        self._control = Lines(self._loop, control, on_message=self._told, on_close=lambda _: self._orphaned())
        self._control.send({"op": "ready"})
        self._loop.run()
        return 0

    def _told(self, _lines: Lines, message: dict[str, Any]) -> None:
        if message["op"] == "run":
            for spec in message["ranks"]:
                self._start(spec, message)
        elif message["op"] == "release":
            self._loop.stop()

    def _start(self, spec: dict[str, Any], message: dict[str, Any]) -> None:
        pid = processes.fork(at="rank.fork")
        if pid == 0:
            self._loop.leave_in_child()
            children.leave(children.exit_code_of(lambda: self._be_rank(spec, message)))
        children.own_group(pid)
        self._ranks[pid] = spec["rank"]
        self._control.send({"op": "rank_started", "rank": spec["rank"], "pid": pid})

    def _be_rank(self, spec: dict[str, Any], message: dict[str, Any]) -> int:
        children.stand_apart(log=self.gang / f"rank-{spec['rank']}.log", keep=self._locks)
        children.take_environment({**os.environ, **spec["env"]})
        return rank.run_call(
            message["call"],
            rank=spec["rank"],
            results=Path(message["results"]),
            argv=spec.get("argv", ()),
            locks=self._locks,
        )

    def _rank_ended(self, pid: int, status: int) -> None:
        ended = self._ranks.pop(pid, None)
        if ended is not None:
            # A rank takes its own children along, whatever it left running in its group.
            processes.signal_group(pid, signal.SIGKILL, at="member.rank.sweep")
            self._control.send({"op": "rank_exit", "rank": ended, "exit": status})

    def _orphaned(self) -> None:
        for pid in self._ranks:
            processes.signal_group(pid, signal.SIGTERM, at="member.orphaned.term")
        self._loop.after(_ORPHAN_GRACE_SECONDS if self._ranks else 0.0, self._give_up)

    def _give_up(self) -> None:
        for pid in self._ranks:
            processes.signal_group(pid, signal.SIGKILL, at="member.orphaned.kill")
        self._loop.stop()
