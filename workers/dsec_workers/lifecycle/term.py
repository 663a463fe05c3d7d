"""A leader's term: what all steps of the loop share from winning the lease until losing it.

Everything here that is not in the ledger may be forgotten at any moment: it only saves requests, or delays a repeated
notice. What must survive is in the ledger, under the term's fence.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from dsec_blocks.ledger import Decision, Fence, Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.names import STATE_WAITING_AGAIN, STATE_WAITING_FIRST_TIME
from dsec_blocks.model.notices import Notice
from dsec_blocks.model.reasons import Reason
from dsec_workers.clusters.protocol import Cluster, GangKey, Known
from dsec_workers.lifecycle.errands import Errands
from dsec_workers.lifecycle.marks import Mark, write_marks
from dsec_workers.lifecycle.together import Together
from dsec_workers.lifecycle.wakeups import Wake
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api import PrefectApi, Run
from dsec_workers.settings import WorkerSettings

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a waiting run's state says now, and since when (monotonic)."""

    code: str
    position: int | None
    eta: float | None
    at: float
    text: str = ""


async def nothing_known() -> Known | None:
    """For processes that are not forked by this worker: they ask the server themselves."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How the flow's process is to be started. `command` None is the pre-imported engine."""

    env: Mapping[str, str]
    name: str
    command: str | None
    working_dir: str | None
    job_manifest: Mapping[str, Any] | None = None
    """On Kubernetes: the pool's own Job, on which the gang's are built."""
    labels: Mapping[str, str] = field(default_factory=dict)
    known: Callable[[], Awaitable[Known | None]] = nothing_known
    """What the process need not ask the server for, asked in the moment of the launch."""


@dataclass(kw_only=True)
class Term:
    """The shared means and memory of one leader's term."""

    pool: str
    fence: Fence
    settings: WorkerSettings
    clock: Clock
    ledger: Ledger
    api: PrefectApi
    cluster: Cluster
    errands: Errands
    wake: Wake
    """Wakes the planning step."""
    carry_wake: Wake
    """Wakes the carrying step."""
    watch_wake: Wake
    """Wakes the reading of runs that events named."""
    poll_wake: Wake
    """Wakes the poll; known due times are its alarms."""
    lost: Callable[[], None]
    """Ends the term: another worker leads."""
    log: Log
    metrics: WorkerMetrics
    launch_settings: Callable[[Run], Awaitable[LaunchSettings]]
    """What the run's deployment and job variables say about its process."""
    left: Callable[[str], None]
    """Told when a run has left the queue, so that the intake takes it for news if it comes back."""
    mention: Callable[[str], None]
    """Have the intake read this run again."""
    arrived_at: Callable[[], float] = lambda: float("-inf")
    """When the intake last heard of a run (monotonic)."""
    ships_logs: bool = False
    """Whether somebody follows the gangs' logs, and has to read what an attempt said last."""
    gangs: Mapping[str, Gang] = field(default_factory=dict)
    """Gangs that have not ended, as the last plan read them: for metrics. Whoever decides reads the ledger."""
    runs: dict[str, Run] = field(default_factory=dict)
    """Runs as last read, of gangs that have not ended."""
    refused: dict[str, Reason] = field(default_factory=dict)
    """Waiting runs that no plan can help: invalid request, unknown team, paused queue."""
    manifests: dict[str, Any] = field(default_factory=dict)
    """On Kubernetes: the pool's own Job with the job variables of a waiting run filled in, by run id."""
    told: dict[str, Told] = field(default_factory=dict)
    leaving_soon: set[GangKey] = field(default_factory=set)
    """Victims that answered their notice."""
    notices: dict[GangKey, Notice] = field(default_factory=dict)
    noticed_at: dict[GangKey, float] = field(default_factory=dict)
    leave_by: dict[GangKey, float] = field(default_factory=dict)
    """Until when the noticed gangs will have left, by `steady()`."""
    admitted_at: dict[GangKey, float] = field(default_factory=dict)
    stopping: set[GangKey] = field(default_factory=set)
    stopped_for: dict[GangKey, str] = field(default_factory=dict)
    """Why we stopped an attempt ourselves: the kind of its outcome."""
    over_since: dict[GangKey, float] = field(default_factory=dict)
    """Attempts that run on although their run has a final state, and since when we know (monotonic)."""
    pauses_told: dict[str, str] = field(default_factory=dict)
    """The pause (by its state's id) whose price a run's log tells already, by run id."""
    astray: set[str] = field(default_factory=set)
    """Gangs that wait here while their run is not Scheduled: somebody has to look."""
    left_alone: set[GangKey] = field(default_factory=set)
    """Gangs of a newer DSec on the cluster that the ledger knows nothing of, and of which the log tells already."""
    draining: bool = False
    decisions: list[Decision] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    """Runs whose report is still to be published, each with how often that was tried."""
    last_words: set[GangKey] = field(default_factory=set)
    """Attempts that are over and whose last output may not have been shipped."""
    marks: Together = field(init=False)
    """What waits to be written together: a ledger's method, and one gang's values for it."""
    asked: Together = field(init=False)
    """Gangs that are to be read, together with others."""
    yielding_since: float | None = None
    line_told_at: float = float("-inf")
    """When a long line was last told why it waits (monotonic)."""
    line_is_due: bool = False
    """Whether it has been put off since."""
    published_map: list[dict[str, Any]] | None = None
    _began: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.marks, self.asked = Together(self._mark, kind_of=itemgetter(0)), Together(self._named)
        self._began = (self.clock.now(), self.clock.monotonic())

    def steady(self) -> float:
        """Seconds since the epoch as this term counts them: a wall clock that jumps changes neither them nor a wait."""
        now, monotonic = self._began
        return now + self.clock.monotonic() - monotonic

    async def read(self, method: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call a ledger method in a thread."""
        return await anyio.to_thread.run_sync(partial(method, *args, **kwargs))

    async def gang(self, run_id: str) -> Gang | None:
        """One gang as the ledger has it now, read with whatever others are asked for at this moment."""
        found: Gang | None = await self.asked.add((run_id,))
        return found

    async def _named(self, asked: Sequence[tuple[str]]) -> list[Gang | None]:
        found = await self.read(self.ledger.named, {run_id for (run_id,) in asked})
        return [found.get(run_id) for (run_id,) in asked]

    async def write(self, method: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call a ledger method that takes the fence first, in a thread."""
        return await anyio.to_thread.run_sync(partial(method, self.fence, *args, **kwargs))

    async def mark(self, method: Callable[..., Sequence[_T | Exception]], *values: Any) -> _T:
        """Write one gang's `values` by a ledger method that takes many gangs', with whatever else comes at this moment.

        Raises what `method` answers for this gang if that is an error, and what it raises for all.
        """
        found: _T = await self.marks.add((method, values))
        return found

    async def _mark(self, marks: Sequence[Mark]) -> list[Any]:
        async with self._logged() as entries:
            answers, is_logged = await self.read(write_marks, self.ledger, self.fence, marks, entries)
            if not is_logged:
                self.decisions[:0] = entries
            return answers

    @asynccontextmanager
    async def _logged(self) -> AsyncIterator[list[Decision]]:
        """The decisions put so far, which whoever takes them writes; they are put back if that fails."""
        entries, self.decisions = self.decisions, []
        try:
            yield entries
        except BaseException:
            self.decisions[:0] = entries
            raise

    def ring(self) -> None:
        """Something happened: both steps look again."""
        self.wake.ring()
        self.carry_wake.ring()

    def decide(
        self,
        stage: str,
        outcome: str,
        *,
        run_id: str | None = None,
        why: str = "",
        detail: Mapping[str, Any] = {},
        policy_version: str = "",
    ) -> None:
        """Put an entry into the decision log; `log_decisions` writes what was put, many in one transaction."""
        entry = self.entry(stage, outcome, run_id=run_id, why=why, detail=detail, policy_version=policy_version)
        self.count(entry)
        self.decisions.append(entry)

    def entry(
        self,
        stage: str,
        outcome: str,
        *,
        run_id: str | None = None,
        why: str = "",
        detail: Mapping[str, Any] = {},
        policy_version: str = "",
    ) -> Decision:
        """An entry of this moment, for whoever writes it with what it tells of; `count` it once it is written."""
        return Decision(
            at=self.clock.now(),
            pool=self.pool,
            run_id=run_id,
            stage=stage,
            outcome=outcome,
            why=why,
            detail=dict(detail),
            policy_version=policy_version,
        )

    def count(self, entry: Decision) -> None:
        """The metrics of a decision."""
        gang = self.gangs.get(entry.run_id or "")
        team = "" if gang is None else gang.team
        self.metrics.decided(entry.stage, entry.outcome, team=team, detail=entry.detail)

    async def log_decisions(self) -> None:
        """Write the decisions put since the last time."""
        while self.decisions:
            async with self._logged() as entries:
                await self.write(self.ledger.decide, entries)

    def forget(self, run_id: str) -> None:
        """Drop what is remembered of a run that left the queue."""
        self.runs.pop(run_id, None)
        self.refused.pop(run_id, None)
        self.manifests.pop(run_id, None)
        self.told.pop(run_id, None)
        self.left(run_id)

    def forget_attempt(self, key: GangKey) -> None:
        """Drop what is remembered of an attempt that is over."""
        for times in (self.noticed_at, self.leave_by, self.admitted_at, self.over_since):
            times.pop(key, None)
        self.notices.pop(key, None)
        self.stopped_for.pop(key, None)
        self.pauses_told.pop(key.run_id, None)
        if self.ships_logs:
            self.last_words.add(key)
        self.leaving_soon.discard(key)
        self.stopping.discard(key)


def key_of(gang: Gang) -> GangKey:
    """The gang's name on the cluster."""
    return GangKey(gang.run_id, gang.attempt)


def waiting_name(run: Run) -> str:
    """The state name of a waiting run: only one name keeps the page of a run that has already run."""
    return STATE_WAITING_AGAIN if run.run_count > 0 else STATE_WAITING_FIRST_TIME
