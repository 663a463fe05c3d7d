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


def _errands(group: anyio.abc.TaskGroup, clock: ManualClock, fenced: Callable[[], None] = lambda: None) -> Errands:
    return Errands(group, clock=clock, log=logging.getLogger("test"), done=lambda: None, fenced=fenced)


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
