"""What runs have lasted is remembered with their end, and what one expects of a run is in its row."""

from dataclasses import replace

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.requests import Kind
from tests.blocks.ledger.gangs import LATER, POOL, known, on, waiting
from tests.fixtures.clock import ManualClock


def came(ledger: Ledger, fence: Fence, run_id: str, **fields: object) -> Gang:
    gang = replace(waiting(run_id), deployment="d1")
    ledger.enqueue(fence, [replace(gang, **fields)])  # type: ignore[arg-type]
    return known(ledger, run_id)


def ran(
    ledger: Ledger, fence: Fence, clock: ManualClock, run_id: str, seconds: float, *, as_: str = "Completed",
    **fields: object,
) -> None:  # fmt: skip
    """On two devices for so long, and over."""
    came(ledger, fence, run_id, **fields)
    attempt = ledger.admit(fence, run_id, on("n1/0", "n1/1"), expires_at=LATER).attempt
    ledger.claimed(fence, run_id, attempt, user_retries=None)
    ledger.started(fence, run_id, attempt, clock.now())
    clock.advance(seconds)
    ledger.leave(fence, run_id, attempt, {"kind": "exited"})
    ledger.end(fence, run_id, attempt, final_state=as_)


def test_a_run_is_expected_to_last_as_long_as_the_last_ones_of_its_deployment(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    assert came(ledger, fence, "first").expected_seconds is None
    for number, seconds in enumerate([50.0, 60.0, 70.0, 80.0, 900.0]):
        ran(ledger, fence, clock, f"r{number}", seconds)
    for number in range(5):
        ran(ledger, fence, clock, f"o{number}", 5.0, deployment="d2", team="b")

    assert came(ledger, fence, "next").expected_seconds == 70.0
    assert came(ledger, fence, "of another", deployment="d3", team="b").expected_seconds == 5.0
    assert came(ledger, fence, "of nobody", deployment="", team="c").expected_seconds == 27.5, "of the whole pool"
    first = ledger.admit(fence, "first", on("n1/0"), expires_at=LATER)
    assert known(ledger, first.run_id).expected_seconds == 70.0, "learned while it waited"
    assert set(ledger.durations(POOL)) >= {"deployment d1 1x2", "team default 1x2", "team default", "team b", "pool"}


def test_a_run_counts_with_all_its_attempts_and_once(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    came(ledger, fence, "a")
    for attempt in (1, 2):
        ledger.admit(fence, "a", on("n1/0", "n1/1"), expires_at=LATER)
        ledger.claimed(fence, "a", attempt, user_retries=None)
        ledger.started(fence, "a", attempt, clock.now())
        clock.advance(30.0)
        ledger.leave(fence, "a", attempt, {"kind": "evicted"})
        if attempt == 1:
            ledger.requeue(fence, "a", 1, evicted=True)
            clock.advance(500.0)
    assert ledger.end(fence, "a", 2, final_state="Completed")
    assert not ledger.end(fence, "a", 2, final_state="Completed")
    assert ledger.durations(POOL)["pool"] == [60.0]


@pytest.mark.parametrize("as_", ["Cancelled", "Crashed"])
def test_a_run_that_was_cut_short_says_nothing(ledger: Ledger, fence: Fence, clock: ManualClock, as_: str) -> None:
    ran(ledger, fence, clock, "a", 3.0, as_=as_)
    assert ledger.durations(POOL) == {}


def test_neither_do_services_and_runs_that_never_started(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    service = replace(waiting("s").request, kind=Kind.INFERENCE)
    ran(ledger, fence, clock, "s", 3.0, request=service)
    came(ledger, fence, "w")
    ledger.end(fence, "w", 0, final_state="Completed")
    assert ledger.durations(POOL) == {}
