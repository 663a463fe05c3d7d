"""When a preemptor may be prepared."""

import pytest

from dsec_blocks.ledger import Holding
from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.lifecycle.evictions import blockers, on_their_way
from tests.workers.lifecycle.records import gang

KEY = GangKey("victim", 1)


def _holding(device: str, turn: int, run_id: str) -> Holding:
    return Holding(device=device, turn=turn, run_id=run_id, attempt=1, node="n", state="bound", expires_at=None)


def test_blockers_are_those_that_hold_what_is_promised() -> None:
    holdings = [
        _holding("a", 0, "victim"), _holding("a", 1, "urgent"),
        _holding("b", 0, "urgent"), _holding("c", 0, "bystander"),
    ]  # fmt: skip
    assert blockers(holdings) == {"urgent": {"victim"}}


@pytest.mark.parametrize(
    ("case", "present", "answered", "deadline", "ready"),
    [
        ("it has answered", GangState.EVICTING, {KEY}, 130.0, True),
        ("it has not answered", GangState.EVICTING, set(), 130.0, False),
        ("it has not even been told", GangState.EVICTING, set(), None, False),
        ("it will be stopped within two seconds", GangState.EVICTING, set(), 101.5, True),
        ("it has left", GangState.LEAVING, set(), None, True),
    ],
)
def test_whether_a_victim_is_on_its_way(
    case: str, present: GangState, answered: set[GangKey], deadline: float | None, ready: bool
) -> None:
    victim = gang(present, run_id="victim")
    deadlines = {} if deadline is None else {KEY: deadline}
    assert on_their_way({"victim"}, {"victim": victim}, answered=answered, deadlines=deadlines, now=100.0) is ready, (
        case
    )
