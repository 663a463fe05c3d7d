"""What `dsec explain` says beside what it is given."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsec_blocks.ledger import Decision
from dsec_blocks.model.gangs import GangState
from dsec_deployments.cli.explain import _starts_late, failures_known
from tests.blocks.ledger.gangs import POOL, known, running
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger


def waits(attempt: int, why: str) -> dict[str, Any]:
    return {"stage": "start", "outcome": "waits", "why": why, "detail": {"attempt": attempt}}


STORY = [
    waits(1, "node n1 is pulling the image (20 s so far)"),
    waits(2, "node n3 is pulling the image (20 s so far)"),
    waits(2, "node n3 is pulling the image (3 min so far)"),
    {"stage": "launch", "outcome": "launched", "why": "", "detail": {"attempt": 2}},
]


@pytest.mark.parametrize(
    ("state", "attempt", "told"),
    [
        ("launching", 2, "node n3 is pulling the image (3 min so far)"),
        ("launching", 3, None),
        ("running", 2, None),
    ],
)
def test_a_start_that_takes_long_is_explained_by_the_newest_word_of_its_attempt(
    state: str, attempt: int, told: str | None
) -> None:
    assert _starts_late({"gang": {"state": state, "attempt": attempt}, "decisions": STORY}) == told


def test_where_gangs_lately_failed_is_told_of_who_waits_by_now_and_of_who_runs_by_its_admission(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    fence = ledger.take_lease(POOL, "leader", seen=None)
    assert fence is not None
    running(ledger, fence, "a", "n1/0")
    ledger.leave(fence, "a", 1, {"kind": "lost"})
    ledger.requeue(fence, "a", 1, evicted=False, infrastructure=True)
    there: Any = SimpleNamespace(ledger=ledger, pool=POOL, clock=clock)
    waits = known(ledger, "a")
    (row,) = failures_known(there, waits, [])
    assert row["text"] == "1 recent failures on n1; weighs 64 cards against it"
    admit = Decision(
        at=1.0, pool=POOL, run_id="a", stage="plan", outcome="admit", why="", detail={"failures": {"n2": 0.5}}
    )
    (row,) = failures_known(there, replace(waits, state=GangState.RUNNING), [admit])
    assert (row["node"], row["cards"]) == ("n2", 32.0)
    ledger.close()
