"""What a pause costs stands in the run's log, once, whether or not an event told of it."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_workers.lifecycle import cancellations
from dsec_workers.lifecycle.errands import Errands
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiUnavailable, Run
from tests.blocks.ledger.gangs import known, running
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import run, state

SAID = "Paused: this run keeps its 2 GPUs meanwhile; suspend it to let them go."


class Pool:
    """As much of a term as a look at the holders needs, on a real ledger in which the run holds a device."""

    def __init__(self, ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
        self.gang = running(ledger, fence, "run", "n1/0")
        self.present = run(state("RUNNING"))
        self.lines: list[str] = []
        self.away = False
        api = SimpleNamespace(runs=self._runs, how_many=self._how_many, logs=self._logs)
        self.term: Any = SimpleNamespace(api=api, ledger=ledger, fence=fence, clock=clock, pauses_told={})
        self.term.read = partial(Term.read, self.term)
        self.ledger = ledger

    async def _runs(self, run_ids: Sequence[str], *, types: Collection[str] = ()) -> dict[str, Run]:
        return {"run": self.present} if not types or self.present.state.type in types else {}

    async def _how_many(self, run_ids: Sequence[str]) -> int:
        return len(run_ids)

    async def _logs(self, lines: Sequence[dict[str, Any]]) -> None:
        if self.away:
            raise ApiUnavailable("away")
        self.lines += [line["message"] for line in lines]

    async def look(self) -> None:
        await self._until_done(cancellations.look_at_holders, self.term, [known(self.ledger, "run")])

    async def hear(self) -> None:
        await self._until_done(cancellations.heard, self.term, self.present)

    async def _until_done(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        async with anyio.create_task_group() as group:
            log = logging.getLogger("test")
            self.term.errands = Errands(group, clock=self.term.clock, log=log, done=lambda: None, fenced=lambda: None)
            await work(*args)


@pytest.fixture
def pool(ledger: Ledger, fence: Fence, clock: ManualClock) -> Pool:
    return Pool(ledger, fence, clock)


async def test_a_pause_whose_event_was_lost_is_found_and_told_once(pool: Pool) -> None:
    await pool.look()
    assert pool.lines == []
    pool.present = run(state("PAUSED", at=2000.0))
    await pool.look()
    await pool.hear()  # the event, late
    await pool.look()
    assert pool.lines == [SAID]
    pool.present = run(state("PAUSED", at=3000.0))  # the next pause of the same run
    await pool.look()
    assert pool.lines == [SAID, SAID]


async def test_a_suspended_run_lets_its_gpus_go_and_is_told_nothing(pool: Pool) -> None:
    pool.present = run(state("PAUSED", pause_reschedule=True))
    await pool.look()
    assert pool.lines == []


async def test_what_could_not_be_told_is_told_by_the_next_look_and_fails_nothing_else(pool: Pool) -> None:
    pool.present = run(state("PAUSED"))
    pool.away = True
    await pool.look()
    assert pool.lines == []
    pool.away = False
    await pool.look()
    assert pool.lines == [SAID]
