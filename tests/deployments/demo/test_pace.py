"""On a busy machine the demo takes its time, so that the gangs that give way are still there when it is their turn."""

from typing import Any, cast

import pytest

from dsec_deployments.demo.stage import SLOWEST, Stage
from dsec_deployments.demo.venue import KUBERNETES, THIS_MACHINE, Venue


def on(venue: Venue) -> Stage:
    nothing = cast(Any, None)
    return Stage(
        home=nothing,
        venue=venue,
        installation=nothing,
        prefect=nothing,
        ledger=nothing,
        clock=nothing,
        recording=nothing,
        tell=lambda _: None,
    )


@pytest.mark.parametrize(("times", "slowness"), [(0.5, 1.0), (1.0, 1.0), (2.0, 2.0), (50.0, SLOWEST)])
def test_the_finetune_ended_before_its_eviction_beside_a_load(times: float, slowness: float) -> None:
    stage = on(THIS_MACHINE)
    assert THIS_MACHINE.reference_seconds is not None
    stage.go_along_with(THIS_MACHINE.reference_seconds * times)
    assert stage.slowness == slowness
    assert stage.pace == THIS_MACHINE.pace * slowness


def test_where_nobody_knows_what_a_reference_run_takes_the_pace_is_the_venues() -> None:
    stage = on(KUBERNETES)
    stage.go_along_with(1000.0)
    assert stage.pace == KUBERNETES.pace
