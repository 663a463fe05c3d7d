"""Without any fault, each story keeps every invariant, and together they reach every point of a run's path.

`make test` plays today's stories, as it strikes today's cases; `make test-long` all.
"""

import json
import os

import pytest

from tests.crash import cases
from tests.crash.conftest import Ahead
from tests.crash.stories import STORIES
from tests.fixtures.rotation import in_turn


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", in_turn(tuple(STORIES), day=cases.seed(), days=4))
def test_a_story_without_a_fault_keeps_every_invariant_and_passes_the_points_that_are_struck_in_it(
    story: str, ahead: Ahead
) -> None:
    outcome = ahead.outcome(story)
    assert not outcome.broken, "\n".join([*outcome.broken, outcome.report])
    if not os.environ.get("DSEC_CRASH_RECORD"):
        missed = sorted(cases.struck_in(story) - outcome.passed)
        assert not missed, f"{story} does not reach {', '.join(missed)}: record again, see cases.REACHED"


# In `make test`, the one above holds today's stories against the record, and the one below the record against the
# names in the source.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_point_of_a_runs_path_is_reached_by_a_story(ahead: Ahead) -> None:
    for story in STORIES:
        ahead.begin_story(story)
    outcomes = {story: ahead.outcome(story) for story in STORIES}
    broken = [f"{story}: {done.broken}\n{done.report}" for story, done in outcomes.items() if done.broken]
    assert not broken, "\n".join(broken)  # it would have passed no point
    seen = {story: outcome.passed for story, outcome in outcomes.items()}
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
