"""Point × mode over the outposts of a gang in pods, which the matrix of a run's path does not reach: wherever one is
struck, both pods end, no process is left, and a checkpoint is whole or is not there.
"""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from dsec_blocks.gateways.faults import ENV_FAULT_LOG, ENV_FAULT_ONCE, MODES
from dsec_blocks.model.names import ENV_FAULT
from tests.crash import cases
from tests.crash.outpost_stories import PROGRAMS, broken, gang, play
from tests.fixtures.rotation import in_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RECORDED = Path(__file__).parent / "reached_outposts.json"


def points() -> list[str]:
    return [name for name in sorted(cases.told_of_points()) if name.startswith("outpost.")]


@cache
def reached() -> dict[str, list[str]]:
    """Which story passes which points when nothing fails."""
    found: dict[str, list[str]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def matrix() -> list[tuple[str, str, str]]:
    """Every point in every mode, each in the first story that reaches it."""
    stories = {point: story for story in reversed(PROGRAMS) for point in reached().get(story, ())}
    return [(point, mode, stories[point]) for point in points() if point in stories for mode in MODES]


def todays() -> list[tuple[str, str, str]]:
    """Two or three of them, others tomorrow: all within a month."""
    every, day = matrix(), cases.seed()
    return every[day % 29 :: 29]


async def struck(point: str, mode: str, story: str, folder: Path) -> None:
    (folder / "once").mkdir()
    environment = {ENV_FAULT: f"{point}:{mode}", ENV_FAULT_ONCE: str(folder / "once")}
    outposts = gang(story, folder, environment)
    try:
        await play(story, outposts)
        assert (folder / "once" / point).exists(), "the story did not reach the point: record again"
        wrong = broken(story, outposts)
        assert not wrong, "\n".join([*wrong, outposts.output(0), outposts.output(1)])
    finally:
        outposts.close()


@pytest.mark.parametrize("story", in_turn(tuple(PROGRAMS), day=cases.seed(), days=3))
async def test_a_story_without_a_fault_passes_the_points_it_is_recorded_with(story: str, tmp_path: Path) -> None:
    log = tmp_path / "passed"
    outposts = gang(story, tmp_path, {ENV_FAULT_LOG: str(log)})
    try:
        await play(story, outposts)
        assert not broken(story, outposts), outposts.output(0) + outposts.output(1)
    finally:
        outposts.close()
    passed = sorted(set(log.read_text().split()) & set(points()))
    if os.environ.get("DSEC_CRASH_RECORD"):
        RECORDED.write_text(json.dumps({**reached(), story: passed}, indent=1, sort_keys=True) + "\n")
        reached.cache_clear()
    assert set(reached()[story]) <= set(passed), "record again: DSEC_CRASH_RECORD=1"


def test_every_point_of_an_outpost_is_reached() -> None:
    assert {point for point, _, _ in matrix()} == set(points())


@pytest.mark.parametrize(("point", "mode", "story"), todays())
async def test_matrix(point: str, mode: str, story: str, tmp_path: Path) -> None:
    await struck(point, mode, story, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("point", "mode", "story"), [case for case in matrix() if case not in todays()])
async def test_rest_of_the_matrix(point: str, mode: str, story: str, tmp_path: Path) -> None:
    await struck(point, mode, story, tmp_path)
