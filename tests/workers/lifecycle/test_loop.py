"""What the loop's steps set in motion, from a real ledger; its errands are noted and not run."""

from typing import Any

import anyio
import pytest

from benchmarks.cycle_live import loop_of
from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.errors import LedgerUnreachable
from dsec_blocks.model.gangs import GangState
from dsec_workers.lifecycle import mirror, reasons
from dsec_workers.lifecycle.loop import Loop, evict_everything
from dsec_workers.scheduling import Policy
from tests.blocks.ledger.gangs import LATER, POOL, admitted, known, running, waiting
from tests.fixtures.clock import ManualClock
from tests.workers.scheduling.world import node


@pytest.fixture
def loop(ledger: Ledger, fence: Fence, clock: ManualClock) -> Loop:
    nodes = [node("n1", 2)]
    ledger.put_nodes(fence, nodes)
    return loop_of(ledger, fence, clock, nodes, Policy())


def begun(loop: Loop) -> list[tuple[str, str]]:
    errands: Any = loop.term.errands
    found, errands.started = errands.started, []
    return found


async def test_a_preemptor_is_claimed_once_its_victim_has_released_its_devices(
    loop: Loop, ledger: Ledger, fence: Fence
) -> None:
    victim = running(ledger, fence, "victim", "n1/0", "n1/1")
    await loop.carry()
    assert begun(loop) == []
    admitted(ledger, fence, "next", "n1/0", "n1/1", victims=("victim",))
    await loop.carry()
    assert begun(loop) == [("notice:victim", "notice")]
    ledger.release_devices(fence, "victim", victim.attempt)
    await loop.carry()
    assert ("next", "claim") in begun(loop)
    ledger.leave(fence, "victim", victim.attempt, {"kind": "evicted"})
    await loop.carry()
    assert ("victim", "ending") in begun(loop)


async def test_what_was_written_without_a_word_is_planned_after_a_minute_and_said_in_the_log(
    loop: Loop, ledger: Ledger, fence: Fence, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])
    ledger.set_reasons(fence, {"a": ("waits-for-capacity", "full")})
    ledger.put_policy(POOL, {"max_admissions": 1}, by="ops", why="test")
    await loop.plan()
    with ledger.transaction(at="test.plant") as connection:
        connection.exec_driver_sql("UPDATE gangs SET evictions = 7, changed = 0 WHERE run_id = 'b'")
    clock.advance(mirror.WHOLE_SECONDS)
    await loop.plan()
    assert "1 gangs were changed in the ledger without a word to its reader, and have been read again: b" in caplog.text
    assert loop.term.gangs["b"].evictions == 7


async def test_what_a_gang_holds_is_accounted_for_from_the_first_look_at_it(
    loop: Loop, ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    await loop.carry()  # nothing is held, so nothing was accounted for
    running(ledger, fence, "run", "n1/0", "n1/1")
    clock.advance(1.0)
    await loop.carry()
    assert ledger.usage(POOL) == {"default": pytest.approx(2.0)}


async def test_a_drain_with_eviction_broke_off_when_the_ledger_was_away_for_a_moment(
    loop: Loop, ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = running(ledger, fence, "run", "n1/0")
    asked, read = [], ledger.gangs

    def away_at_first(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise LedgerUnreachable("it is restarted")
        return read(*args)

    monkeypatch.setattr(ledger, "gangs", away_at_first)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as drain:
            drain.start_soon(evict_everything, loop)
            while known(ledger, "run").state is not GangState.EVICTING:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            ledger.leave(fence, "run", gang.attempt, {"kind": "evicted"})
            ledger.requeue(fence, "run", gang.attempt, evicted=True, infrastructure=False)
    assert known(ledger, "run").state is GangState.WAITING


async def test_a_long_line_is_told_why_it_waits_once_a_second_and_nobody_in_it_is_left_out(
    loop: Loop, ledger: Ledger, fence: Fence, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "LONG_LINE", 2)
    running(ledger, fence, "holder", "n1/0", "n1/1")
    ledger.enqueue(fence, [waiting("a"), waiting("b"), waiting("c")])
    await loop.plan()
    assert known(ledger, "c").reason_code is not None
    ledger.enqueue(fence, [waiting("d")])
    await loop.plan()
    assert known(ledger, "d").reason_code is None
    clock.advance(reasons.LONG_LINE_SECONDS)
    with anyio.fail_after(60):
        await loop.term.wake.wait(60.0)  # an alarm was set for it
    await loop.plan()
    assert known(ledger, "d").reason_code is not None


async def test_what_was_not_bound_in_time_is_given_up_but_not_what_was_claimed_in_that_moment(
    loop: Loop, ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    gang = admitted(ledger, fence, "late", "n1/0")
    await loop.carry()
    assert begun(loop) == [("late", "claim")]
    clock.advance(LATER)
    await loop.carry()
    assert begun(loop) == [("late", "expiry")]
    ledger.claimed(fence, "late", gang.attempt, user_retries=None)
    await loop._expire(gang)
    assert known(ledger, "late").state is GangState.LAUNCHING
