"""A reservation that is given back is not planned again before Prefect has said that its run still waits.

T36 is kueue#10407: records of what nobody owns any more.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle import cancellations, claims
from dsec_workers.lifecycle.errands import Errands
from dsec_workers.lifecycle.mirror import View
from dsec_workers.lifecycle.planning import Planning
from dsec_workers.lifecycle.pool_form import PoolForm
from dsec_workers.lifecycle.run_limits import RunLimits
from dsec_workers.prefect_api import ApiUnavailable, Run
from dsec_workers.scheduling.policy import Policy
from tests.blocks.ledger.gangs import LATER, POOL, on, waiting
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger
from tests.workers.lifecycle.records import run, state

RUN = "run"


class Takeover:
    """As much of a successor's term as giving back needs, on a real ledger in which a dead worker has reserved."""

    def __init__(self, ledger: Ledger) -> None:
        fence = ledger.take_lease(POOL, "successor", seen=None)
        assert fence is not None
        ledger.enqueue(fence, [waiting(RUN)])
        self.reserved = ledger.admit(fence, RUN, on("n1/0"), expires_at=LATER)
        self.ledger = ledger
        self.answer: Run | ApiUnavailable | None = None
        self.planned_meanwhile: list[bool] = []
        self.term: Any = SimpleNamespace(
            pool=POOL, ledger=ledger, api=SimpleNamespace(run=self._run), astray=set(), refused={}, runs={},
            errands=SimpleNamespace(keys_of=lambda _: set()), read=self._read, write=self._write,
            decide=lambda *_, **__: None, forget_attempt=lambda _: None, forget=lambda _: None,
            ring=lambda: None,
        )  # fmt: skip
        self.fence = fence

    async def _run(self, _: str) -> Run | None:
        # A plan may come between any two steps; here is the longest gap, and what was undone is committed.
        self.planned_meanwhile.append(self.would_plan())
        if isinstance(self.answer, ApiUnavailable):
            raise self.answer
        return self.answer

    async def _read(self, method: Any, *args: Any) -> Any:
        return method(*args)

    async def _write(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self.fence, *args, **kwargs)

    def gang(self) -> Gang:
        gang = self.ledger.gang(RUN)
        assert gang is not None
        return gang

    def would_plan(self) -> bool:
        """Whether a plan that begins now would have the gang in its queue."""
        waits = [gang for gang in [self.gang()] if gang.state is GangState.WAITING]
        intake: Any = SimpleNamespace(form=PoolForm())
        plan: Any = None
        view = View(waiting=waits)
        queue, _ = Planning(plan=plan, policy=Policy())._queue(self.term, intake, view, RunLimits().room(()))
        return bool(queue)


@pytest.fixture
def takeover(tmp_path: Path) -> Iterator[Takeover]:
    ledger = new_ledger(tmp_path / "ledger.db", clock=ManualClock())
    yield Takeover(ledger)
    ledger.close()


async def test_a_run_that_ended_before_the_takeover_is_never_planned_again_17628(takeover: Takeover) -> None:
    cancelled = takeover.answer = run(state("CANCELLED"))
    await claims.undo(takeover.term, takeover.reserved, cancelled, why="the run is Cancelled")
    assert takeover.gang().state is GangState.WAITING
    assert takeover.ledger.holders(POOL) == []
    assert not takeover.would_plan()
    await cancellations.look_astray(takeover.term, RUN)
    assert (takeover.gang().state, takeover.gang().attempt) == (GangState.ENDED, 1)
    assert takeover.planned_meanwhile == [False, False]
    assert not takeover.term.astray


async def test_a_run_that_still_waits_is_planned_again_at_once(takeover: Takeover) -> None:
    scheduled = takeover.answer = run(state("SCHEDULED"))
    await claims.undo(takeover.term, takeover.reserved, scheduled, why="its reservation expired")
    assert takeover.planned_meanwhile == [False]
    assert takeover.would_plan()


async def test_while_the_api_is_away_the_devices_are_free_and_the_gang_waits_for_the_answer(takeover: Takeover) -> None:
    takeover.answer = ApiUnavailable("away")
    with pytest.raises(ApiUnavailable):
        await claims.undo(takeover.term, takeover.reserved, run(state("CANCELLED")), why="the run is Cancelled")
    with pytest.raises(ApiUnavailable):
        await cancellations.look_astray(takeover.term, RUN)
    assert takeover.ledger.holders(POOL) == []
    assert not takeover.would_plan()
    takeover.answer = run(state("SCHEDULED"))
    await cancellations.look_astray(takeover.term, RUN)
    assert takeover.would_plan()


async def test_a_look_that_fails_half_way_is_taken_again(takeover: Takeover, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = takeover.answer = run(state("CANCELLED"))
    await claims.undo(takeover.term, takeover.reserved, cancelled, why="the run is Cancelled")

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(takeover.ledger, "forget_waiting", fails)
        with pytest.raises(OSError, match="disk"):
            await cancellations.look_astray(takeover.term, RUN)
    assert not takeover.would_plan()
    await cancellations.look_astray(takeover.term, RUN)
    assert takeover.gang().state is GangState.ENDED


async def test_t36_a_deleted_run_leaves_nothing_to_look_at(takeover: Takeover) -> None:
    await claims.undo(takeover.term, takeover.reserved, None, why="the run was deleted")
    assert takeover.gang().state is GangState.ENDED
    assert not takeover.term.astray


async def test_a_plan_that_comes_while_the_claim_is_still_being_given_back_leaves_it_astray(takeover: Takeover) -> None:
    cancelled = takeover.answer = run(state("CANCELLED"))
    term = takeover.term

    async def give_back() -> None:
        await claims.undo(term, takeover.reserved, cancelled, why="the run is Cancelled")
        cancellations.look_at_astray(term)  # the claim's own errand still has the key
        takeover.planned_meanwhile.append(takeover.would_plan())

    async with anyio.create_task_group() as group:
        log = logging.getLogger("test")
        term.errands = Errands(group, clock=ManualClock(), log=log, done=lambda: None, fenced=lambda: None)
        term.errands.start(RUN, "claim", give_back)
        await term.errands.settle()
        assert not takeover.would_plan()
        cancellations.look_at_astray(term)
        assert not takeover.would_plan()
        await term.errands.settle()
    assert takeover.gang().state is GangState.ENDED
    assert not any(takeover.planned_meanwhile)
