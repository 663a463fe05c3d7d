"""One piece of work per key, and what fails comes again later."""

import itertools
import logging
from collections.abc import Callable

import anyio
import pytest

from dsec_blocks.model.errors import Fenced, StaleAttempt
from dsec_workers.lifecycle.errands import Errands
from dsec_workers.prefect_api import ApiUnavailable
from tests.fixtures.clock import ManualClock


def _errands(
    group: anyio.abc.TaskGroup,
    clock: ManualClock,
    fenced: Callable[[], None] = lambda: None,
    done: Callable[[], None] = lambda: None,
) -> Errands:
    return Errands(group, clock=clock, log=logging.getLogger("test"), done=done, fenced=fenced)


async def test_a_gang_has_one_piece_of_work_at_a_time() -> None:
    begun: list[str] = []
    go = anyio.Event()

    async def work(name: str) -> None:
        begun.append(name)
        await go.wait()

    async with anyio.create_task_group() as group:
        errands = _errands(group, ManualClock())
        assert errands.start("run", "claim", work, "claim")
        assert not errands.start("run", "ending", work, "ending")
        assert errands.start("other", "claim", work, "other")
        await anyio.sleep(0.01)
        assert errands.running("claim") == 2
        go.set()
        await errands.settle()
    assert sorted(begun) == ["claim", "other"]


async def test_what_fails_is_tried_again_after_a_pause_that_grows() -> None:
    clock = ManualClock()
    tries: list[float] = []

    async def work() -> None:
        tries.append(clock.monotonic())
        raise ApiUnavailable("away")

    async with anyio.create_task_group() as group:
        errands = _errands(group, clock)
        for _ in range(80):
            errands.start("run", "claim", work)
            await errands.settle()
            clock.advance(0.1)
    pauses = [round(b - a, 1) for a, b in itertools.pairwise(tries)]
    assert pauses[0] == pytest.approx(0.5, abs=0.11)
    assert pauses == sorted(pauses)


@pytest.mark.parametrize(("error", "fences"), [(Fenced("x"), 1), (StaleAttempt("x"), 0)])
async def test_a_fenced_errand_ends_the_term_and_a_stale_one_only_itself(error: Exception, fences: int) -> None:
    fenced: list[int] = []

    async def work() -> None:
        raise error

    async with anyio.create_task_group() as group:
        errands = _errands(group, ManualClock(), lambda: fenced.append(1))
        errands.start("run", "claim", work)
        await errands.settle()
        assert not errands.busy("run")
    assert len(fenced) == fences


class _Burst:
    """Claims that end one by one when told, and how often the loop was told of an end."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.told = 0
        self.errands = _errands(group, ManualClock(), done=self._done)
        self.go = {name: anyio.Event() for name in ("a", "b", "c")}
        for name in self.go:
            self.errands.start(name, "claim", self._claim, name)

    def _done(self) -> None:
        self.told += 1

    async def _claim(self, name: str, error: Exception | None = None) -> None:
        await self.go[name].wait()
        if error is not None:
            raise error

    async def end(self, name: str) -> None:
        self.go[name].set()
        await anyio.wait_all_tasks_blocked()


async def test_of_a_burst_of_claims_only_the_last_has_the_loop_look_again() -> None:
    async with anyio.create_task_group() as group:
        burst = _Burst(group)
        await burst.end("a")
        await burst.end("b")
        assert burst.told == 0
        await burst.end("c")
        assert burst.told == 1


async def test_an_ending_that_came_during_its_claim_is_looked_at_when_the_claim_ends() -> None:
    """A gang that dies at once is leaving before its claim's errand has returned."""
    async with anyio.create_task_group() as group:
        burst = _Burst(group)
        assert not burst.errands.start("a", "ending", anyio.sleep, 0)
        assert not burst.errands.start("b", "claim", anyio.sleep, 0)  # the same again is no news
        await burst.end("a")
        assert burst.told == 1
        await burst.end("b")
        assert burst.told == 1
        await burst.end("c")


async def test_a_claim_that_failed_is_looked_at_though_others_go_on() -> None:
    async with anyio.create_task_group() as group:
        burst = _Burst(group)
        burst.go["d"] = anyio.Event()
        burst.errands.start("d", "claim", burst._claim, "d", ApiUnavailable("away"))
        await burst.end("d")
        assert burst.told == 1
        for name in ("a", "b", "c"):
            await burst.end(name)


async def test_work_is_said_to_be_recent_while_it_runs_and_for_as_long_afterwards_as_is_asked() -> None:
    clock, go = ManualClock(), anyio.Event()
    async with anyio.create_task_group() as group:
        errands = _errands(group, clock)
        assert not errands.lately("claim", 1.0)
        errands.start("run", "claim", go.wait)
        clock.advance(5.0)
        assert errands.lately("claim", 1.0)
        go.set()
        await errands.settle()
    clock.advance(0.9)
    assert errands.lately("claim", 1.0) and not errands.lately("ending", 1.0)
    clock.advance(0.2)
    assert not errands.lately("claim", 1.0)


async def test_the_claim_of_who_evicted_thousands_does_not_wait_until_all_of_them_are_back_in_the_line() -> None:
    go = anyio.Event()
    claimed = anyio.Event()

    async def back_in_line() -> None:
        await go.wait()

    async def claim() -> None:
        claimed.set()

    async with anyio.create_task_group() as group:
        errands = _errands(group, ManualClock())
        for victim in range(2000):
            errands.start(f"victim-{victim}", "ending", back_in_line)
        errands.start("urgent", "claim", claim)
        with anyio.fail_after(30):
            await claimed.wait()
        assert errands.running("ending") == 2000
        go.set()
        await errands.settle()
    assert errands.running("") == 0
