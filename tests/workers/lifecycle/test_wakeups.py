"""When the loop looks again: alarms ring once, also for whoever was busy at that moment."""

import anyio

from dsec_workers.lifecycle.wakeups import Wake
from tests.fixtures.clock import ManualClock

LONG = 3600.0


async def test_an_alarm_that_passed_while_nobody_waited_rings_for_the_next_who_waits() -> None:
    clock = ManualClock()
    wake = Wake(clock)
    wake.at(clock.now() + 10)
    clock.advance(11)
    with anyio.fail_after(30):
        await wake.wait(LONG)


async def test_an_alarm_in_the_past_does_not_ring_and_one_that_rang_does_not_ring_again() -> None:
    clock = ManualClock()
    wake = Wake(clock)
    due = clock.now() + 10
    wake.at(due)
    clock.advance(10)
    await wake.wait(LONG)
    wake.at(due)
    with anyio.move_on_after(0.05) as waiting:
        await wake.wait(LONG)
    assert waiting.cancelled_caught
