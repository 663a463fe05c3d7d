"""Failures of the machine are counted against the nodes they happened on, once each, and fade."""

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.node_failures import HALF_LIFE_SECONDS
from tests.blocks.ledger.gangs import POOL, running
from tests.fixtures.clock import ManualClock

LOST = {"kind": "lost", "lost_member": None}


def leave(ledger: Ledger, fence: Fence, run_id: str, outcome: dict[str, object], *devices: str) -> int:
    gang = running(ledger, fence, run_id, *devices)
    ledger.leave(fence, run_id, gang.attempt, outcome)
    return gang.attempt


def counted(ledger: Ledger, clock: ManualClock) -> dict[str, float]:
    return ledger.node_failures(POOL, clock.now())


@pytest.mark.parametrize(
    ("outcome", "blamed"),
    [
        pytest.param({"kind": "lost", "lost_member": 1}, {"n2": 1.0}, id="the node of the member that died"),
        pytest.param(LOST, {"n1": 0.5, "n2": 0.5}, id="all nodes when all processes are gone"),
        pytest.param({"kind": "failed-start"}, {"n1": 0.5, "n2": 0.5}, id="all nodes of a start that failed"),
        pytest.param({"kind": "exited", "flow_exit": -9}, {"n1": 1.0}, id="the node of the flow's process"),
    ],
)
def test_whose_fault_it_is(
    ledger: Ledger, fence: Fence, clock: ManualClock, outcome: dict[str, object], blamed: dict[str, float]
) -> None:
    attempt = leave(ledger, fence, "a", outcome, "n1/0", "n2/0")
    assert counted(ledger, clock) == {}, "before anybody knows what becomes of it"
    for _ in range(2):  # the second changes nothing
        ledger.requeue(fence, "a", attempt, evicted=False, infrastructure=True)
    assert counted(ledger, clock) == blamed


def test_an_eviction_speaks_against_no_node(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    attempt = leave(ledger, fence, "a", {"kind": "evicted", "reason": "x"}, "n1/0")
    ledger.requeue(fence, "a", attempt, evicted=True)
    assert counted(ledger, clock) == {}


@pytest.mark.parametrize(
    ("outcome", "state", "blamed"),
    [
        (LOST, "Crashed", {"n1": 1.0}),
        ({"kind": "failed-start"}, "Crashed", {"n1": 1.0}),
        ({"kind": "exited", "flow_exit": 1}, "Failed", {}),
        ({"kind": "exited", "flow_exit": 0}, "Completed", {}),
    ],
    ids=["lost", "failed start", "failed by itself", "completed"],
)
def test_a_run_that_is_given_up_counts_if_the_machine_failed_it(
    ledger: Ledger,
    fence: Fence,
    clock: ManualClock,
    outcome: dict[str, object],
    state: str,
    blamed: dict[str, float],
) -> None:
    attempt = leave(ledger, fence, "a", outcome, "n1/0")
    ledger.end(fence, "a", attempt, final_state=state)
    ledger.end(fence, "a", attempt, final_state=state)
    assert counted(ledger, clock) == blamed


def test_failures_add_up_and_fade_and_are_forgotten(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    for run_id in ("a", "b"):
        attempt = leave(ledger, fence, run_id, LOST, "n1/0")
        ledger.requeue(fence, run_id, attempt, evicted=False, infrastructure=True)
    assert counted(ledger, clock) == {"n1": 2.0}
    assert ledger.node_failures(POOL, clock.now() + HALF_LIFE_SECONDS) == {"n1": 1.0}
    assert ledger.node_failures(POOL, clock.now() - 60) == {"n1": 2.0}, "a clock that went back"
    assert ledger.node_failures(POOL, clock.now() + 7 * HALF_LIFE_SECONDS) == {}
    assert ledger.node_failures("other", clock.now()) == {}


def test_a_run_that_fails_wherever_it_goes_says_less_of_each_node(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    attempt = leave(ledger, fence, "a", LOST, "n1/0")
    ledger.requeue(fence, "a", attempt, evicted=False, infrastructure=True)
    again = ledger.admit(fence, "a", running(ledger, fence, "b", "n2/0").placement, victims=("b",), expires_at=2e6)
    ledger.leave(fence, "a", again.attempt, LOST)
    ledger.requeue(fence, "a", again.attempt, evicted=False, infrastructure=True)
    assert counted(ledger, clock) == {"n1": 1.0, "n2": 0.5}
