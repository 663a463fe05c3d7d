"""What the ledger remembers of runs that passed the head of line, so that any successor can call them back."""

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import LATER, POOL, known, on, waiting


def test_the_condition_on_which_a_run_passed_lasts_as_long_as_the_attempt(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("passer")])
    gang = ledger.admit(fence, "passer", on("n1/0"), expires_at=LATER, conditional_until=500.0)
    assert gang.conditional_until == 500.0
    ledger.claimed(fence, "passer", gang.attempt, user_retries=None)
    ledger.started(fence, "passer", gang.attempt, 20.0)
    assert known(ledger, "passer").conditional_until == 500.0
    ledger.leave(fence, "passer", gang.attempt, {"kind": "evicted"})
    ledger.requeue(fence, "passer", gang.attempt, evicted=True)
    again = ledger.admit(fence, "passer", on("n1/0"), expires_at=LATER)
    assert (again.attempt, again.conditional_until) == (2, None)


@pytest.mark.parametrize("started", [True, False])
def test_a_passer_is_told_to_leave_for_a_run_that_waits_whole_or_not_at_all(
    ledger: Ledger, fence: Fence, started: bool
) -> None:
    ledger.enqueue(fence, [waiting("passer"), waiting("head")])
    gang = ledger.admit(fence, "passer", on("n1/0"), expires_at=LATER, conditional_until=500.0)
    ledger.claimed(fence, "passer", gang.attempt, user_retries=None)
    if started:
        ledger.started(fence, "passer", gang.attempt, 20.0)
    assert ledger.evict(fence, ["passer"], why="in time", for_run="head", costs={"passer": 7.0}) == ["passer"]
    (eviction,) = ledger.evictions(POOL)
    assert (eviction.for_run, eviction.cost, eviction.why) == ("head", 7.0, "in time")
    assert ledger.evict(fence, ["passer"], why="again", for_run="head") == []
    assert known(ledger, "head").state is GangState.WAITING
    assert [(h.device, h.turn, h.run_id) for h in ledger.holders(POOL)] == [("n1/0", 0, "passer")]
    assert ledger.check() == []
