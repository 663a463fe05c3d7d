"""What the ranks of a pod print, brought to the run's page in Prefect.

On one machine the worker reads the ranks' files; here it would have to ask every pod for them, and the pod knows the
Prefect server itself. A child does it, so that a slow server holds up no supervisor. Best effort: what the server does
not take in time is in the pod's own output all the same.
"""

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.faults import fault_point
from dsec_workers.clusters import rank_output
from dsec_workers.clusters.local import children, warmth
from dsec_workers.clusters.local.loop import Loop

SHIP_SECONDS = 2.0
LAST_SECONDS = 3.0
"""How long the end of a pod waits for its last lines: its cards are not free before."""
_LOOK_SECONDS = 0.02


class Shipping:
    """Ships what is printed to files in `gang`, from the first line on; `env` says where the Prefect server is."""

    def __init__(self, loop: Loop, gang: Path, *, run_id: str, env: Mapping[str, str]) -> None:
        self._loop, self._gang, self._run_id, self._env = loop, gang, run_id, env
        self._end: int | None = None
        """Of a pipe to the child: closed, it tells it to ship the rest and leave."""
        self.pids: set[int] = set()
        """The child, once there is one: no process of the gang's."""

    def start(self) -> None:
        """Begin once there is something to ship."""
        if self._end is None and not self._begin():
            self._loop.after(SHIP_SECONDS, self.start)

    def finish(self) -> None:
        """Have the rest shipped, for a few seconds; nothing is left running. For after the loop has ended."""
        if self._end is None and not self._begin():
            return
        assert self._end is not None
        os.close(self._end)
        clock, (pid,) = SystemClock(), self.pids
        deadline = clock.monotonic() + LAST_SECONDS
        while (found := processes.sighting(pid)) is not None and not found.is_zombie:
            if clock.monotonic() > deadline:
                processes.signal_group(pid, signal.SIGKILL, at="outpost.shipping.kill")
                return
            time.sleep(_LOOK_SECONDS)

    def _begin(self) -> bool:
        has_output = any(path.stat().st_size for path in rank_output.files_of(self._gang))
        if not has_output or not self._env.get("PREFECT_API_URL"):
            return False
        theirs, self._end = os.pipe()
        pid = processes.fork(at="outpost.shipping.fork")
        if pid == 0:
            self._loop.leave_in_child()
            children.leave(children.exit_code_of(lambda: self._ship(theirs)))
        os.close(theirs)
        children.own_group(pid)
        self.pids.add(pid)
        return True

    def _ship(self, end: int) -> int:
        """In the child: until the pipe's other end is closed and all is shipped."""
        children.stand_apart(log=self._gang / "shipping.log", keep=[end])
        children.take_environment(self._env)
        warmth.rebuild_prefect_context()
        from prefect.client.orchestration import get_client

        tail, clock = rank_output.Tail(), SystemClock()
        unsent: deque[list[dict[str, Any]]] = deque()
        with get_client(sync_client=True) as client:
            is_last = False
            while not is_last:
                is_last = bool(select.select([end], [], [], SHIP_SECONDS)[0])
                lines = tail.read(self._gang, last=is_last)
                unsent += rank_output.requests(lines, run_id=self._run_id, now=clock.now())
                try:
                    while unsent:
                        with fault_point("outpost.logs.ship"):
                            client.create_logs(unsent[0])
                        unsent.popleft()
                except Exception as error:  # noqa: BLE001 - whatever it is, the pod's own output has the lines
                    print(f"not shipped yet: {error}", file=sys.stderr, flush=True)
        return 0
