"""Without any fault, each story keeps every invariant, and together they reach every point of a run's path."""

import json
import os

import pytest

from tests.crash import cases
from tests.crash.conftest import Ahead
from tests.crash.stories import STORIES


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", STORIES)
def test_a_story_without_a_fault_keeps_every_invariant(story: str, ahead: Ahead) -> None:
    outcome = ahead.outcome(story)
    assert not outcome.broken, "\n".join([*outcome.broken, outcome.report])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_point_of_a_runs_path_is_reached_by_a_story(ahead: Ahead) -> None:
    seen = {story: ahead.outcome(story).passed for story in STORIES}
    if os.environ.get("DSEC_CRASH_RECORD"):
        text = json.dumps({story: sorted(points) for story, points in seen.items()}, indent=1) + "\n"
        cases.REACHED.write_text(text)
        cases.reached.cache_clear()
    wanted = {point for point, scope in cases.scopes().items() if scope == "run"}
    missed = sorted(wanted - frozenset().union(*seen.values()))
    assert not missed, f"no story reaches {', '.join(missed)}"


def test_the_matrix_has_every_point_of_a_runs_path() -> None:
    wanted = {point for point, scope in cases.scopes().items() if scope == "run"}
    assert {case.strike.point for case in cases.matrix()} == wanted, "record again: see cases.REACHED"
