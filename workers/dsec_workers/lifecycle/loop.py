"""The worker's loop, and its step: read, compare, act, write down; anything that is not finished comes round again.

Four steps share a term, each in its own task, so that a slow answer holds up nobody else. `watch` and `poll` read
Prefect into the ledger; `plan` decides from the ledger; `carry` moves reserved, evicting and leaving gangs on, and
keeps doing so while the Prefect API is away. None ends because something fails; only losing the lease, or a drain,
ends a term.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import DsecError, Fenced
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_workers.lifecycle import cancellations, claims, endings, evictions, reports, wishes
from dsec_workers.lifecycle.health import Turns
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.mirror import Mirror, View
from dsec_workers.lifecycle.planning import Planning
from dsec_workers.lifecycle.reasons import LONGEST_YIELD_SECONDS, QUIET_SECONDS
from dsec_workers.lifecycle.rests import REST_SECONDS, least_rest, rest_after
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable

HOLDERS_SECONDS = 3.0
"""How often the runs of gangs that hold devices are read, for ends that emit no event."""
ACCRUE_SECONDS = 5.0
PRUNE_SECONDS = 60.0
NODES_SECONDS = 5.0
"""How often the state of the nodes is written down for others to read."""
CARRY_SECONDS = 1.0
WATCH_SECONDS = 5.0
LEDGER_PAUSE_SECONDS = 0.5
SHOWN = 10
"""Runs named in a line of the log."""


@dataclass(kw_only=True)
class Loop:
    """One term's steps, with what they remember of when they last did what."""

    term: Term
    intake: Intake
    planning: Planning
    turns: Turns
    polled: Callable[[], None] = lambda: None
    """Told after each planning step, whatever came of it: the loop lives."""
    api_away: bool = False
    mirror: Mirror = field(init=False)
    """A new term's is empty, so that it begins by reading everything."""
    _last: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.mirror = Mirror(self.term.ledger, self.term.pool)

    async def run_carry(self) -> None:
        """Carry gangs on, for ever."""
        busy_rounds = 0
        while True:
            await self._and_rest("carry", self.carry, at_least=least_rest(busy_rounds))
            busy_rounds = busy_rounds + 1 if self.term.carry_wake.is_rung else 0
            await self.term.carry_wake.wait(CARRY_SECONDS)

    async def run_watch(self) -> None:
        """Read the runs that events named, as soon as they do, for ever."""
        while True:
            await self._guarded("watch", self.watch)
            await self.term.watch_wake.wait(WATCH_SECONDS)

    async def run_poll(self) -> None:
        """Read Prefect by the clock, for ever."""
        while True:
            await self._guarded("poll", self.poll)
            self.polled()
            await self.term.poll_wake.wait(self.term.settings.poll_seconds)

    async def run_plan(self) -> None:
        """Plan whenever something happened, until the drain."""
        while not self.term.draining:
            await self._and_rest("plan", self.plan)
            await self.term.wake.wait(self.term.settings.poll_seconds)

    async def settle(self) -> None:
        """For tests: wait until no errand runs."""
        await self.term.errands.settle()

    async def carry(self) -> None:
        """Move every gang on that is between waiting and ended. Asks Prefect only within errands."""
        term = self.term
        now, view = term.clock.now(), await self._view()
        gangs = {gang.run_id: gang for gang in view.under_way()}
        reserved = any(gang.state is GangState.RESERVED for gang in gangs.values())
        blocked = evictions.blockers(view.held()) if reserved else {}
        reasons: dict[str, str] = {}
        if any(gang.state is GangState.EVICTING and key_of(gang) not in term.notices for gang in gangs.values()):
            reasons = {e.run_id: e.why for e in await term.read(term.ledger.evictions, term.pool)}
        expired = view.expired(term.steady())
        for gang in gangs.values():
            if gang.resumes_at is not None and gang.run_id in expired:
                await term.write(term.ledger.undo_admission, gang.run_id, gang.attempt + 1, why=_LATE)
                term.decide("claim", "undone", run_id=gang.run_id, why=_LATE)
                continue
            match gang.state:
                case GangState.RESERVED if gang.run_id in expired:
                    term.errands.start(gang.run_id, "expiry", self._expire, gang)
                case GangState.RESERVED:
                    blockers = blocked.get(gang.run_id, set())
                    if evictions.on_their_way(
                        blockers, gangs, answered=term.leaving_soon, deadlines=term.leave_by, now=term.steady()
                    ):
                        term.errands.start(gang.run_id, "claim", claims.claim, term, gang.run_id, bool(blockers))
                case GangState.LAUNCHING if not gang.launch:
                    term.errands.start(gang.run_id, "claim", claims.claim, term, gang.run_id, False)
                case GangState.EVICTING if key_of(gang) not in term.notices:
                    why = reasons.get(gang.run_id, "Preempted")
                    term.errands.start(f"notice:{gang.run_id}", "notice", evictions.notify, term, gang, why)
                case GangState.LEAVING:
                    term.errands.start(gang.run_id, "ending", endings.settle, term, gang)
                case _:
                    pass
        if view.holdings and self._due("accrue", ACCRUE_SECONDS):
            half_life = self.planning.policy.usage_half_life_seconds
            await term.write(term.ledger.accrue, now, half_life_seconds=half_life)
        if self.planning.refreshed and self._due("prune", PRUNE_SECONDS):
            await self._prune(now)
        await self._log_decisions()

    async def watch(self) -> None:
        """Take in the runs that events named."""
        if not self.api_away and await self._asking(self.intake.reread, self.term):
            self.term.wake.ring()

    async def poll(self) -> None:
        """Take in what became due, and find runs that were cancelled or ended under their gangs."""
        term = self.term
        if not await self._asking(self.intake.poll, term):
            return
        term.wake.ring()
        await self._asking(cancellations.look, term)
        if self._due("holders", HOLDERS_SECONDS):
            holders = [gang for gang in (await self._view()).gangs.values() if gang.state in HOLDING_STATES]
            if holders:
                await self._asking(cancellations.look_at_holders, term, holders)

    async def plan(self) -> None:
        """Decide, and start what was decided. Reads the ledger only: what Prefect says is in it already."""
        term = self.term
        await self._take_in_nodes()
        view = await self._view()
        cancellations.look_at_astray(term)
        await self.planning.refresh(term)
        orders = await wishes.fulfil(term, view.gangs, self.planning.policy, self.planning.nodes)
        if orders:  # what they ask for has been set in motion
            view = await self._view()
        term.gangs = view.gangs
        if self.api_away or term.draining:
            return
        await self.planning.cycle(term, self.intake, view, orders)
        await self._log_decisions()
        calm = not term.errands.lately("claim", QUIET_SECONDS)
        if term.ended and (calm or self._due("reports", LONGEST_YIELD_SECONDS)):
            term.errands.start("run reports", "report", reports.publish_run_reports, term)
        if self._due("map", term.settings.report_seconds):
            term.errands.start("pool map", "report", reports.publish_pool_map, term, self.planning.nodes, view.gangs)

    async def _log_decisions(self) -> None:
        """Write them down, unless marks that wait to be written take them along."""
        if not self.term.marks.is_awaited:
            await self.term.log_decisions()

    async def _view(self) -> View:
        """The pool's gangs as the ledger has them now."""
        view, astray = await self.term.read(self.mirror.refresh, self.term.clock.monotonic())
        if astray:
            self.term.log.warning(
                "%d gangs were changed in the ledger without a word to its reader, and have been read again: %s",
                len(astray), ", ".join(astray[:SHOWN]),
            )  # fmt: skip
        return view

    async def _take_in_nodes(self) -> None:
        """Know each round which nodes are open: a gang that left a cordoned node must not be sent back to it.

        Written down by the clock, and at once where nodes or devices came or went: only what the ledger has is given.
        """
        term = self.term
        nodes = await term.cluster.nodes()
        if self._due("nodes", NODES_SECONDS) or _inventory(nodes) != _inventory(self.planning.nodes):
            await term.write(term.ledger.put_nodes, nodes)
        self.planning.nodes = nodes

    async def _prune(self, now: float) -> None:
        """Forget a little of what is older than the policy keeps; the rest in later rounds."""
        policy = self.planning.policy
        ages = {"ended_before": now - policy.keep_ended_seconds, "decided_before": now - policy.keep_decisions_seconds}
        gone = await self.term.write(self.term.ledger.prune, **ages)
        if gone:
            self.term.log.info("forgot %d gangs, %d decisions and %d wishes", gone.gangs, gone.decisions, gone.wishes)

    async def _expire(self, gang: Gang) -> None:
        present = await self.term.gang(gang.run_id)
        if present is None or present.attempt != gang.attempt or present.state is not GangState.RESERVED:
            return  # it was claimed in that moment
        await claims.undo(self.term, gang, self.term.runs.get(gang.run_id) or await self.term.api.run(gang.run_id),
                          why="its reservation expired before it could start")  # fmt: skip

    async def _asking(self, ask: Callable[..., Awaitable[None]], *args: object) -> bool:
        """Whether the API answered; if not, nothing new is admitted until it does."""
        try:
            await ask(*args)
        except ApiUnavailable as error:
            if not self.api_away:
                self.term.log.warning("the Prefect API is away; running gangs run on: %s", error)
            self.api_away = True
            self.term.metrics.prefect_away(True)
            return False
        except ApiRefused as error:
            self.term.log.error("the Prefect API refused a read: %s", error)
            return False
        if self.api_away:
            self.term.log.info("the Prefect API answers again")
        self.api_away = False
        self.term.metrics.prefect_away(False)
        return True

    async def _and_rest(
        self, name: str, step: Callable[[], Awaitable[None]], *, at_least: float = REST_SECONDS
    ) -> None:
        began = self.term.clock.monotonic()
        await self._guarded(name, step)
        took = self.term.clock.monotonic() - began
        await anyio.sleep(rest_after(took, at_least=at_least))

    async def _guarded(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            with self.turns.turn(name):
                await step()
        except Fenced:
            self.term.lost()
            await anyio.sleep_forever()
        except (DsecError, OSError) as error:
            self.term.log.warning("%s failed and will be tried again: %s", name, error)
            await anyio.sleep(LEDGER_PAUSE_SECONDS)
        except Exception:
            self.term.log.exception("%s failed and will be tried again", name)
            await anyio.sleep(LEDGER_PAUSE_SECONDS)

    def _due(self, what: str, seconds: float) -> bool:
        self._last = self._last if self._last is not None else {}
        now = self.term.clock.monotonic()
        if now - self._last.get(what, float("-inf")) < seconds:
            return False
        self._last[what] = now
        return True


async def evict_everything(loop: Loop) -> None:
    """Before a drain with eviction: every running gang checkpoints and goes back to the queue; waits until all have.

    While the Prefect API is away, gangs that only wait for it are left to a successor: their processes are gone (or
    were never started), and the ledger says what Prefect has to be told. While the ledger is away, it is asked again.
    """
    term = loop.term
    while True:
        try:
            if await _evict_what_runs(loop):
                return
        except Fenced:
            return  # they are another's to evict
        except (DsecError, OSError) as error:
            term.log.warning("the drain waits for the ledger: %s", error)
            await anyio.sleep(LEDGER_PAUSE_SECONDS)
        term.carry_wake.ring()
        await anyio.sleep(0.2)


async def _evict_what_runs(loop: Loop) -> bool:
    """Whether nothing is left to wait for."""
    term = loop.term
    under_way = await term.read(term.ledger.gangs, term.pool, _UNDER_WAY)
    live = [gang.run_id for gang in under_way if gang.state in (GangState.LAUNCHING, GangState.RUNNING)]
    if live:
        await term.write(term.ledger.evict, live, why=f"Evicted: worker {term.settings.holder} drains")
    return not under_way or (loop.api_away and not any(map(_has_processes, under_way)))


def _inventory(nodes: Sequence[Node]) -> list[tuple[str, int]]:
    return [(node.name, len(node.devices)) for node in nodes]


def _has_processes(gang: Gang) -> bool:
    return gang.state not in (GangState.LEAVING, GangState.RESERVED)


_LATE = "it has not left in time to go on where it was to; it waits in line once it has"
_UNDER_WAY = HOLDING_STATES | {GangState.LEAVING}
