"""Standing by, leading, and draining: one worker's time from start to exit.

Any number of workers may serve a pool; the one that holds the lease plans. A term ends when the lease is lost (another
worker took over) or when the worker drains; gangs run on in both cases and are adopted by whoever leads next.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec_blocks.ledger import Election, Fence, Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError, LedgerError, TooNew
from dsec_workers.clusters.protocol import Cluster, GangKey
from dsec_workers.lifecycle import cancellations, happenings, log_shipping
from dsec_workers.lifecycle.adoption import adopt
from dsec_workers.lifecycle.errands import Errands
from dsec_workers.lifecycle.health import CARRY, ELECTION, PLAN, Standing, Turns
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.loop import Loop, evict_everything
from dsec_workers.lifecycle.planning import Planner, Planning
from dsec_workers.lifecycle.term import LaunchSettings, Log, Term
from dsec_workers.lifecycle.wakeups import Wake, listen
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api import PrefectApi, Run
from dsec_workers.scheduling.policy import Policy
from dsec_workers.settings import WorkerSettings

BEAT_SECONDS = 1.0
AWAY_DRAIN_SECONDS = 1.0


@dataclass(kw_only=True)
class Leading:
    """One worker's candidacy for its pool."""

    pool: str
    settings: WorkerSettings
    clock: Clock
    ledger: Ledger
    api: PrefectApi
    client: Any
    cluster: Cluster
    plan: Planner
    policy: Policy
    launch_settings: Callable[[Intake, Term, Run], Awaitable[LaunchSettings]]
    pool_id: Callable[[], str | None]
    log: Log
    drain: anyio.Event
    polled: Callable[[], None] = lambda: None
    metrics: WorkerMetrics
    logs_of: Callable[[GangKey], Path | None] | None = None
    """None: the cluster keeps no logs on this machine, and nobody here ships any."""
    loop: Loop | None = None
    turns: Turns = field(init=False)
    fence: Fence | None = None
    refused: TooNew | None = None
    """Why this worker may not touch the pool any more."""
    _role: str = "starting"
    _adopted: bool = False

    def __post_init__(self) -> None:
        self.turns = Turns(clock=self.clock, metrics=self.metrics)

    @property
    def standing(self) -> Standing:
        """What this worker is at this moment."""
        return Standing(
            pool=self.pool,
            holder=self.settings.holder,
            role=self._role,
            term=None if self.fence is None else self.fence.token,
            adopted=self._adopted,
            draining=self.drain.is_set(),
            ledger_answers=self.metrics.ledger_answers,
            prefect_away=self.loop is not None and self.loop.api_away,
            cluster_away=self.cluster.health().away,
        )

    async def serve(self) -> None:
        """Lead whenever this worker can, until it is told to drain.

        Raises `TooNew` when a newer DSec has taken over the ledger or the cluster: this one can only leave.
        """
        election = Election(self.ledger, self.pool, self.settings.holder, self.settings.lease_ttl_seconds, self.clock)
        standing_by = False
        self.turns.expect(ELECTION)
        try:
            while not self.drain.is_set():
                fence = await self._step(election)
                self.polled()
                if self.refused is not None:
                    raise self.refused
                if fence is not None:
                    standing_by = False
                    self.log.info("leads pool %s (term %d)", self.pool, fence.token)
                    self._stand("leader", fence)
                    try:
                        await self._lead(election, fence)
                    finally:
                        self._stand("standby", None)
                    continue
                self._role = "standby"
                if not standing_by:
                    self.log.info("stands by for pool %s: another worker leads", self.pool)
                    standing_by = True
                with anyio.move_on_after(BEAT_SECONDS):
                    await self.drain.wait()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self._resign(election)

    async def once(self) -> None:
        """Take part once: lead if possible, plan once, and wait for what was started."""
        election = Election(self.ledger, self.pool, self.settings.holder, self.settings.lease_ttl_seconds, self.clock)
        fence = await self._step(election)
        if fence is None:
            return
        try:
            async with anyio.create_task_group() as group:
                loop = self._begin(fence, group, group.cancel_scope.cancel)
                await adopt(loop.term)
                await loop.poll()
                await loop.settle()
                await loop.plan()
                await loop.settle()
                await loop.carry()
                await loop.settle()
        finally:
            await self._resign(election)

    async def _lead(self, election: Election, fence: Fence) -> None:
        async with anyio.create_task_group() as group:
            loop = self.loop = self._begin(fence, group, group.cancel_scope.cancel)
            group.start_soon(self._beat, election, fence, loop.term)
            await self._adopt(loop.term)
            self._adopted = True
            self.turns.expect(PLAN, CARRY)
            group.start_soon(self._follow, loop.term)
            group.start_soon(self._listen, loop.term)
            if self.logs_of is not None:
                group.start_soon(log_shipping.ship, loop.term, self.logs_of)
            group.start_soon(loop.run_carry)
            group.start_soon(loop.run_watch)
            group.start_soon(loop.run_poll)
            group.start_soon(loop.run_plan)
            await self.drain.wait()
            loop.term.draining = True
            self.turns.excuse(PLAN)
            if self.settings.evict_on_drain:
                self.log.info("drains: running gangs checkpoint and go back to the queue")
                await evict_everything(loop)
            else:
                self.log.info("drains: running gangs run on")
                # Errands that wait for an API that is away would only use the time up.
                with anyio.move_on_after(self.settings.drain_seconds if not loop.api_away else AWAY_DRAIN_SECONDS):
                    await loop.settle()
                    with suppress(LedgerError):  # a drain does not fail for the last entries of the log
                        await loop.term.log_decisions()
            group.cancel_scope.cancel()

    def _begin(self, fence: Fence, group: Any, lost: Callable[[], None]) -> Loop:
        wake, carry_wake = Wake(self.clock), Wake(self.clock)

        def ring() -> None:
            wake.ring()
            carry_wake.ring()

        def mention(run_id: str) -> None:
            intake.mentioned.add(run_id)
            term.watch_wake.ring()

        intake = Intake(observe=cancellations.heard, client=self.client)
        term = Term(
            pool=self.pool,
            fence=fence,
            settings=self.settings,
            clock=self.clock,
            ledger=self.ledger,
            api=self.api,
            cluster=self.cluster,
            errands=Errands(group, clock=self.clock, log=self.log, done=ring, fenced=lost),
            wake=wake,
            carry_wake=carry_wake,
            watch_wake=Wake(self.clock),
            poll_wake=Wake(self.clock),
            lost=lost,
            log=self.log,
            metrics=self.metrics,
            launch_settings=lambda run: self.launch_settings(intake, term, run),
            left=intake.left,
            mention=mention,
            ships_logs=self.logs_of is not None,
            arrived_at=lambda: intake.arrived_at,
        )
        planning = Planning(plan=self.plan, policy=self.policy)
        return Loop(term=term, intake=intake, planning=planning, turns=self.turns, polled=self.polled)

    async def _beat(self, election: Election, fence: Fence, term: Term) -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            if await self._step(election) != fence:
                if self.refused is None:
                    self.log.warning("another worker leads pool %s now", self.pool)
                term.lost()

    async def _adopt(self, term: Term) -> None:
        while True:
            try:
                await adopt(term)
            except TooNew as error:
                self.refused = error
                term.lost()
                await anyio.sleep_forever()
            except (DsecError, OSError) as error:
                self.log.warning("adoption will be tried again: %s", error)
                await anyio.sleep(BEAT_SECONDS)
            except Exception:
                # What one odd gang on the cluster makes of its description must not end the worker, which would only
                # find it again when it is started anew.
                self.log.exception("adoption will be tried again")
                await anyio.sleep(BEAT_SECONDS)
            else:
                return

    async def _follow(self, term: Term) -> None:
        while True:
            try:
                await happenings.follow(term)
            except Exception:
                self.log.exception("the cluster's events will be read again")
            await anyio.sleep(BEAT_SECONDS)
            await self._adopt(term)

    async def _listen(self, term: Term) -> None:
        while (pool_id := self.pool_id()) is None:  # noqa: ASYNC110 - Prefect sets it without telling
            await anyio.sleep(BEAT_SECONDS)
        await listen(pool_id, lambda _, run_id: term.mention(run_id), self.log)

    async def _step(self, election: Election) -> Fence | None:
        try:
            with self.turns.turn(ELECTION):
                return await anyio.to_thread.run_sync(election.step)
        except TooNew as error:
            self.refused = error
            return None
        except LedgerError as error:
            self.log.warning("the ledger does not answer: %s", error)
            return election.fence

    def _stand(self, role: str, fence: Fence | None) -> None:
        self._role, self.fence, self._adopted = role, fence, False
        self.metrics.leads(fence is not None)
        self.turns.excuse(PLAN, CARRY)

    async def _resign(self, election: Election) -> None:
        try:
            await anyio.to_thread.run_sync(election.resign)
        except LedgerError as error:
            self.log.warning("the lease was not given back: %s", error)
