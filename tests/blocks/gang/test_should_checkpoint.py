"""`should_checkpoint`: due by steps or by time, on every rank at once, and before an eviction that no hook saves."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blocks.gang.supervisor_double import SupervisorDouble

pytestmark = pytest.mark.slow
EVERY_SECONDS = 0.2


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[[int], SupervisorDouble]]:
    made: list[SupervisorDouble] = []

    def make(world_size: int) -> SupervisorDouble:
        made.append(SupervisorDouble(tmp_path, world_size=world_size))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close()


def saving(log: str, *, every: int | str, saves: int, asked_after: int | None = None) -> None:
    """Train until it was time to save `saves` times; after step `asked_after` the gang is told to leave."""
    from dsec_blocks.gang import run
    from dsec_blocks.gang.membership import membership

    run.checkpoints(every=every)
    saved = 0
    for step in run.steps(100_000):
        time.sleep(0.001)
        asked_at = time.monotonic()
        due = run.should_checkpoint()
        with open(f"{log}-{run.rank}", "a") as file:
            file.write(json.dumps({"step": step, "due": due, "between": [asked_at, time.monotonic()]}) + "\n")
        saved += due
        if saved == saves:
            return
        if step == asked_after and run.rank == 0:
            membership().tell("report", asks=True)
            while run.notice is None:
                time.sleep(0.005)


def _noted(log: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{log}-{rank}").read_text().splitlines()]


def _due(log: Path, rank: int) -> list[int]:
    return [note["step"] for note in _noted(log, rank) if note["due"]]


def test_an_interval_of_time_is_kept_and_is_over_in_the_same_step_on_every_rank(
    gang: Callable[[int], SupervisorDouble], tmp_path: Path
) -> None:
    log, two = tmp_path / "log", gang(2)
    two.start(saving, str(log), every=f"{EVERY_SECONDS:g}s", saves=3)
    assert two.wait() == [0, 0]
    assert _due(log, 0) == _due(log, 1)
    assert len(_due(log, 0)) == 3
    between = [note["between"] for note in _noted(log, 0) if note["due"]]
    assert all(later[1] - earlier[0] >= EVERY_SECONDS for earlier, later in itertools.pairwise(between))


def test_an_interval_of_steps_counts_finished_steps(gang: Callable[[int], SupervisorDouble], tmp_path: Path) -> None:
    log, one = tmp_path / "log", gang(1)
    one.start(saving, str(log), every=4, saves=3)
    assert one.wait() == [0]
    assert _due(log, 0) == [3, 7, 11]


@pytest.mark.parametrize("every", [1000, "1h"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_told_to_leave_after_it_asked_a_gang_without_a_hook_saves_before_it_leaves(
    gang: Callable[[int], SupervisorDouble], tmp_path: Path, world_size: int, every: int | str
) -> None:
    log, supervisor = tmp_path / "log", gang(world_size)
    supervisor.on_request = lambda request: supervisor.notify() if request.get("asks") else None
    supervisor.start(saving, str(log), every=every, saves=2, asked_after=5)
    assert supervisor.wait() == [75] * world_size
    for rank in range(world_size):
        last = _noted(log, rank)[-1]["step"]
        assert last >= 6
        assert _due(log, rank) == [last], "what it did in its last step was not saved"
