"""The planning step of a live worker, on a real ledger: what `benchmarks.cycle` measures as `live_…`.

Everything is the worker's own (`Loop.plan`: news from the ledger, orders, policy, snapshot, `plan()`, admissions and
reasons written down) but for the cluster, which says that its nodes are as they were, and the errands, which are noted
and not run: claims and launches are measured by other benchmarks. What they would have done is entered between two
steps, and not measured.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio

from benchmarks.cycle_world import NOW, SEED, World, arrival, urgent
from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle.health import Turns
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.loop import Loop
from dsec_workers.lifecycle.planning import Planning
from dsec_workers.lifecycle.term import Term
from dsec_workers.lifecycle.wakeups import Wake
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.scheduling import Policy, QueuedGang, plan
from dsec_workers.settings import WorkerSettings


class Ticking(Clock):
    """Moved on by hand, one second a step."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """Seconds."""
        return self.at


@dataclass
class Noted:
    """Errands that are not run."""

    started: list[tuple[str, str]] = field(default_factory=list)

    def start(self, key: str, name: str, work: Callable[..., Awaitable[Any]], *_: object) -> bool:
        """As if it were done at once."""
        self.started.append((key, name))
        return True

    def running(self, _: str) -> int:
        """None is."""
        return 0

    def lately(self, *_: object) -> bool:
        """None was."""
        return False

    def running_for(self, *_: object) -> bool:
        """None is."""
        return False

    def keys_of(self, _: str) -> set[str]:
        """Nobody."""
        return set()


@dataclass(frozen=True)
class StandingCluster:
    """Its nodes are there, and their owners allow everything."""

    there: tuple[Node, ...]

    async def nodes(self) -> tuple[Node, ...]:
        """As they were."""
        return self.there

    def allowance(self, *_: Mapping[str, Any]) -> None:
        """No limit."""


def loop_of(ledger: Ledger, fence: Fence, clock: Clock, nodes: Sequence[Node], policy: Policy) -> Loop:
    """A term of a worker that leads the pool."""
    settings = WorkerSettings(home=Path(), ledger_url="", holder="benchmark", report_seconds=1e9)
    names = ("api", "launch_settings")
    absent: dict[str, Any] = dict.fromkeys(names)
    wakes = {name: Wake(clock) for name in ("wake", "carry_wake", "watch_wake", "poll_wake")}
    term = Term(
        pool=fence.pool, fence=fence, settings=settings, clock=clock, ledger=ledger,
        cluster=cast(Any, StandingCluster(tuple(nodes))), errands=cast(Any, Noted()), lost=_nothing,
        log=logging.getLogger("benchmark"), metrics=WorkerMetrics(fence.pool), left=_nothing, mention=_nothing,
        **wakes, **absent,
    )  # fmt: skip
    intake = Intake(observe=cast(Any, None), client=None)
    planning = Planning(plan=plan, policy=policy)
    return Loop(term=term, intake=intake, planning=planning, turns=Turns(clock=clock, metrics=term.metrics))


def live_ms(
    ledger: Ledger, fence: Fence, clock: Ticking, world: World, policy: Policy, *, steps: int
) -> tuple[float, list[float], list[float]]:
    """Milliseconds of a term's first planning step, which reads everything, and of each that follows: wall, processor.

    Between two of them one gang ends and ten arrive, one of which may evict, and what was admitted starts.
    """
    dice = random.Random(SEED)
    loop = loop_of(ledger, fence, clock, world.nodes, policy)
    wall: list[float] = []
    cpu: list[float] = []

    async def run() -> None:
        for step in range(steps + 1):
            if step:
                clock.at += 1.0
                arrivals = [arrival(dice, f"live-{step:03}-{i}", *dice.choice(world.kinds), NOW - clock.at)
                            for i in range(9)]  # fmt: skip
                arrivals.append(urgent(dice, f"live-{step:03}-9", world, clock.at))
                carry_on(ledger, fence, arrivals, dice, clock.at)
            began, used = time.perf_counter(), time.process_time()
            await loop.plan()
            wall.append((time.perf_counter() - began) * 1000)
            cpu.append((time.process_time() - used) * 1000)

    anyio.run(run)
    return wall[0], wall[1:], cpu[1:]


def carry_on(ledger: Ledger, fence: Fence, arrivals: list[QueuedGang], dice: random.Random, now: float) -> None:
    """What the worker's other steps do between two plans: victims leave, the admitted start, a gang ends, some come."""
    gangs = ledger.gangs(fence.pool, {GangState.RESERVED, GangState.RUNNING, GangState.EVICTING})
    ended = [gang for gang in gangs if gang.state is GangState.EVICTING]
    ended.append(dice.choice([gang for gang in gangs if gang.state is GangState.RUNNING]))
    ledger.leave_all(fence, [(gang.run_id, gang.attempt, {"kind": "exited"}) for gang in ended])
    ledger.end_all(fence, [(gang.run_id, gang.attempt, "COMPLETED") for gang in ended])
    starting = [gang for gang in gangs if gang.state is GangState.RESERVED]
    ledger.claimed_all(fence, [(gang.run_id, gang.attempt, None) for gang in starting])
    ledger.started_all(fence, [(gang.run_id, gang.attempt, now) for gang in starting])
    ledger.enqueue(
        fence,
        [
            Gang(
                run_id=gang.run_id, name=gang.run_id, pool=fence.pool, team=gang.team, request=gang.request,
                state=GangState.WAITING, submitted_at=gang.submitted_at, eligible_at=gang.eligible_at,
            )
            for gang in arrivals
        ],
    )  # fmt: skip


def _nothing(*_: object) -> None:
    pass
