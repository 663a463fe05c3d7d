"""The flow's own process as the supervisor sees it: forked first, let through the start barrier, and asked to leave.

A SIGTERM alone says too little: the Prefect engine must know before whether it means "give the run back" or "this run
is cancelled". So the meaning (the *intent*) goes over a line of its own, and the signal follows the answer.
"""

import signal
import socket
from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways import processes
from dsec_workers.clusters.local import children
from dsec_workers.clusters.local.loop import Lines, Loop

INTENT_TIMEOUT_SECONDS = 1.0
"""How long the signal waits for a flow process that does not answer."""


class FlowProcess:
    """Begins with `fork`; `exit` is its exit status once it has ended."""

    def __init__(self, loop: Loop) -> None:
        self.pid = 0
        self.exit: int | None = None
        self._loop = loop
        self._line: Lines | None = None
        self._is_terminating = False

    def fork(self, be: Callable[[socket.socket], int]) -> None:
        """Fork the process, which runs `be` with its end of the line."""
        self.pid, ours = children.fork_with_line(self._loop, be, at="supervisor.flow.fork")
        self._line = Lines(self._loop, ours, on_message=self._said, on_close=lambda _: self._signal())

    def let_through(self) -> None:
        """The start barrier is open."""
        if self._line is not None:
            self._line.send({"op": "go"})

    def tell(self, intent: str | None) -> bool:
        """Say what a SIGTERM would mean from now on; False when nobody listens."""
        if self._line is None or not self._line.is_open:
            return False
        self._line.send({"op": "intent", "intent": intent})
        return True

    def terminate(self, intent: str | None) -> None:
        """SIGTERM to its group, once it knows what the signal means (or does not answer)."""
        if self.exit is not None or self._is_terminating:
            return
        self._is_terminating = True
        if self.tell(intent):
            self._loop.after(INTENT_TIMEOUT_SECONDS, self._signal)
        else:
            self._signal()

    def _said(self, _line: Lines, message: dict[str, Any]) -> None:
        if message["op"] == "intent":
            self._signal()

    def _signal(self) -> None:
        if self._is_terminating and self.exit is None:
            self._is_terminating = False
            processes.signal_group(self.pid, signal.SIGTERM, at="supervisor.flow.term")
