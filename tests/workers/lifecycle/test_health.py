"""A worker is dead when a step of its loop hangs, and never because somebody else is away."""

from dataclasses import replace

import pytest

from dsec_blocks.model.errors import Fenced, LedgerError
from dsec_workers.lifecycle.health import CARRY, PLAN, STUCK_SECONDS, Standing, Turns, hangs, hinders, told
from dsec_workers.metrics import WorkerMetrics
from tests.fixtures.clock import ManualClock

LEADER = Standing(
    pool="gpus",
    holder="w1",
    role="leader",
    term=3,
    adopted=True,
    draining=False,
    ledger_answers=True,
    prefect_away=False,
)


@pytest.fixture
def turns(clock: ManualClock) -> Turns:
    return Turns(clock=clock, metrics=WorkerMetrics("gpus"))


def test_a_step_that_has_not_come_round_for_minutes_hangs_and_turning_again_cures_it(
    turns: Turns, clock: ManualClock
) -> None:
    turns.expect(PLAN, CARRY)
    clock.advance(STUCK_SECONDS)
    assert hangs(turns.ages(), turns.needed) == []
    with turns.turn(CARRY):
        pass
    clock.advance(1.0)
    assert hangs(turns.ages(), turns.needed) == ["the plan step has not come round for 121 s"]
    with turns.turn(PLAN):
        clock.advance(5.0)
    assert hangs(turns.ages(), turns.needed) == []


def test_steps_that_nobody_expects_or_that_are_over_may_rest(turns: Turns, clock: ManualClock) -> None:
    turns.expect(PLAN)
    with turns.turn("poll"):
        pass
    turns.excuse(PLAN)
    clock.advance(10 * STUCK_SECONDS)
    assert hangs(turns.ages(), turns.needed) == []


def test_a_turn_that_fails_has_turned_and_is_counted_but_losing_the_lease_is_no_failure(turns: Turns) -> None:
    turns.expect(PLAN)
    with pytest.raises(LedgerError), turns.turn(PLAN):
        raise LedgerError("away")
    with pytest.raises(Fenced), turns.turn(PLAN):
        raise Fenced("another leads")
    value = turns.metrics.registry.get_sample_value
    assert value("dsec_cycle_failures_total", {"pool": "gpus", "step": "plan"}) == 1
    assert value("dsec_cycle_seconds_count", {"pool": "gpus", "step": "plan"}) == 2


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({}, []),
        ({"role": "standby", "adopted": False}, []),
        ({"prefect_away": True}, []),
        ({"role": "starting", "adopted": False}, ["it has not looked at the lease yet"]),
        ({"ledger_answers": False}, ["the ledger does not answer"]),
        ({"adopted": False}, ["it does not know yet what its predecessor left running"]),
        ({"draining": True}, ["it drains"]),
    ],
    ids=lambda value: str(value),
)
def test_what_hinders_a_worker_is_said_and_prefect_being_away_does_not(
    changed: dict[str, object], reasons: list[str]
) -> None:
    assert hinders(replace(LEADER, **changed)) == reasons  # type: ignore[arg-type]


def test_the_answer_says_who_it_is_and_what_is_away() -> None:
    answer = told(replace(LEADER, prefect_away=True), {"plan": 0.123}, [])
    assert answer["ok"] and answer["role"] == "leader" and answer["term"] == 3
    assert (answer["prefect"], answer["ledger"]) == ("away", "answers")
    assert answer["seconds_since"] == {"plan": 0.1}
    assert not told(LEADER, {}, ["it drains"])["ok"]
