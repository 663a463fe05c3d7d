"""The `gang.run` that is in progress, as the supervisor steers it: started, failed, abandoned, stopped.

One at a time: ranks hold the gang's devices, and two runs on the same ones would be two programs on one GPU.
"""

import signal
from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways import processes
from dsec_workers.clusters.local.loop import Loop
from dsec_workers.clusters.local.runs import FAILED_RUN_GRACE_SECONDS, GangRun


class CurrentRun:
    """`run` is None while no ranks are out. `is_noticed` says whether the gang was told to leave."""

    def __init__(
        self,
        loop: Loop,
        *,
        is_noticed: Callable[[], bool],
        on_rank_end: Callable[[], None],
        tell_elsewhere: Callable[[dict[str, Any]], None],
    ) -> None:
        self.run: GangRun | None = None
        self.count = 0
        """How many runs there were; they are numbered from 1."""
        self._loop = loop
        self._is_noticed = is_noticed
        self._on_rank_end = on_rank_end
        self._tell_elsewhere = tell_elsewhere

    def next_number(self) -> int:
        """The number of the run that is about to start."""
        self.count += 1
        return self.count

    def rank_started(self, rank: int, pid: int | None, *, is_ending: bool) -> None:
        """A member has started a rank; one that comes too late is sent away at once. `pid` None is elsewhere."""
        if self.run is not None:
            too_late = is_ending or self.run.has_failed
            if pid is None:
                if too_late:
                    self._tell_elsewhere({"op": "term"})
                return
            self.run.pids[rank] = pid
            if too_late:
                processes.signal_group(pid, signal.SIGTERM, at="supervisor.late_rank.term")

    def rank_ended(self, rank: int, code: int) -> None:
        """A rank's exit; when it is a failure, the other ranks are stopped."""
        run = self.run
        if run is None:
            return
        failed_before = run.has_failed
        run.ended(rank, code)
        if run.is_over:
            self.run = None
            run.tell({"done": True, "evicted": self._is_noticed() and any(run.exits.values())})
        elif run.has_failed and not failed_before and not self._is_noticed():
            self._stop(run)
        self._on_rank_end()

    def orphan_ended(self, pid: int, status: int) -> None:
        """A child that the supervisor inherited has ended: a rank, if its member died before it."""
        rank = next((rank for rank, known in self.run.pids.items() if known == pid), None) if self.run else None
        if rank is not None:
            self.rank_ended(rank, status)

    def member_died(self, index: int) -> None:
        """A dead member reports nothing: of its ranks, those that do not run are taken for killed."""
        for rank in self.run.ranks if self.run is not None else ():
            run = self.run
            if run is not None and rank.member == index and rank.rank not in run.exits:
                pid = run.pids.get(rank.rank)
                if pid is None or processes.sighting(pid) is None:
                    self.rank_ended(rank.rank, -signal.SIGKILL)

    def abandon(self) -> None:
        """Whoever called `gang.run` is not there any more: stop its ranks."""
        if self.run is not None and not self._is_noticed():
            self._stop(self.run)

    def terminate(self) -> None:
        """SIGTERM to every rank: the gang is ending."""
        for group in list(self.run.pids.values()) if self.run is not None else ():
            processes.signal_group(group, signal.SIGTERM, at="supervisor.rank.term")
        self._tell_elsewhere({"op": "term"})

    def _stop(self, run: GangRun) -> None:
        for group in list(run.pids.values()):
            processes.signal_group(group, signal.SIGTERM, at="supervisor.failed_run.term")
        self._tell_elsewhere({"op": "term"})
        self._loop.after(FAILED_RUN_GRACE_SECONDS, lambda: self._kill(run))

    def _kill(self, run: GangRun) -> None:
        for group in list(run.pids.values()):
            processes.signal_group(group, signal.SIGKILL, at="supervisor.failed_run.kill")
        if self.run is run:
            self._tell_elsewhere({"op": "kill"})
