"""Point × mode: whatever fails, once, anywhere on the path of a run, everything ends as it must.

`make test` runs today's part (the seed is the date), `make test-long` all. `DSEC_CRASH_SEED=N` plays another day,
`DSEC_CRASH_PART=i/n` one n-th of the whole, `DSEC_CRASH_CASE=point:mode[@story],…` these cases.
"""

import os
import random

import pytest

from dsec_blocks.gateways.faults import MODES
from tests.crash import cases
from tests.crash.cases import Case
from tests.crash.conftest import Ahead
from tests.crash.play import Stage
from tests.crash.world import Strike

TODAY = cases.chosen()
IS_ALL = not {"DSEC_CRASH_CASE", "DSEC_CRASH_PART"} & set(os.environ)
REST = [case for case in cases.matrix() if case not in TODAY] if IS_ALL else []
RECOVERY = (
    "ledger.take_lease", "ledger.launched", "ledger.started", "ledger.leave", "ledger.requeue", "ledger.end",
    "prefect.requeue.write", "prefect.requeue.pid", "cluster.notify", "cluster.stop", "cluster.gone.write",
    "cluster.leftovers.kill", "cluster.forget.record", "ledger.release_devices", "ledger.undo_admission",
)  # fmt: skip
"""Points that a recovering worker passes."""
SAMPLE = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", TODAY, ids=str)
def test_matrix(case: Case, ahead: Ahead) -> None:
    judge(case, ahead)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", REST, ids=str)
def test_rest_of_the_matrix(case: Case, ahead: Ahead) -> None:
    judge(case, ahead)


def recoveries() -> list[tuple[Case, Strike]]:
    """First strikes that kill, each with a kill of the one who recovers."""
    rng = random.Random(cases.seed())
    first = [case for case in cases.matrix() if case.strike.mode in ("kill_before", "kill_after")]
    second = [Strike(point=point, mode=mode) for point in RECOVERY for mode in ("kill_before", "kill_after", "lost")]
    return [(case, rng.choice(second)) for case in rng.sample(first, min(SAMPLE, len(first)))]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("struck", "again"), recoveries(), ids=str)
def test_whoever_recovers_may_be_killed_too(struck: Case, again: Strike, stage: Stage) -> None:
    outcome = stage.play(struck, second=again)
    assert not outcome.broken, f"{struck}, then {again}\n{outcome.report}"


def test_twenty_five_days_strike_each_important_point_in_every_mode() -> None:
    struck = {str(case.strike) for day in range(25) for case in cases.todays(1000 + day)}
    assert {f"{point}:{mode}" for point in cases.ALWAYS for mode in MODES} <= struck


def test_the_parts_of_the_matrix_are_the_matrix() -> None:
    whole = cases.matrix()
    parts = [case for index in range(1, 8) for case in cases.part_of(whole, f"{index}/7")]
    assert sorted(map(str, parts)) == sorted(map(str, whole))
    with pytest.raises(ValueError, match="not i/n"):
        cases.part_of(whole, "8/7")


def test_three_weeks_strike_every_point() -> None:
    struck = {case.strike.point for day in range(21) for case in cases.todays(1000 + day)}
    assert struck == {case.strike.point for case in cases.matrix()}


def judge(case: Case, ahead: Ahead) -> None:
    print(f"seed {cases.seed()}; again: {case.replay}")
    outcome = ahead.outcome(str(case))
    assert not outcome.broken, "\n".join([*outcome.broken, f"again: {case.replay}", outcome.report])
