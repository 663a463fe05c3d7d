"""When a waiting run is told anew, and what its page says."""

from typing import Any

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.lifecycle.reasons import WRITES_AT_ONCE, is_news, room_for, waiting_message
from dsec_workers.lifecycle.term import Told
from dsec_workers.scheduling.decisions import Hold
from tests.workers.lifecycle.records import gang

NOW, MONOTONIC = 1_000_000.0, 500.0


def _hold(
    code: ReasonCode = ReasonCode.WAITS_FOR_CAPACITY, *, position: int | None = None, eta_in: float | None = None
) -> Hold:
    eta = None if eta_in is None else NOW + eta_in
    return Hold(run_id="run", reason=Reason(code=code, text="why"), position=position, eta=eta)


def _told(*, ago: float, position: int | None = None, eta_in: float | None = None) -> Told:
    eta = None if eta_in is None else NOW + eta_in
    return Told(code=ReasonCode.WAITS_FOR_CAPACITY, position=position, eta=eta, at=MONOTONIC - ago)


@pytest.mark.parametrize(
    ("case", "hold", "told", "news"),
    [
        ("never told", _hold(), None, True),
        ("another code, at once", _hold(ReasonCode.FRAGMENTED), _told(ago=0), True),
        ("the same", _hold(position=3), _told(ago=90, position=3), False),
        ("a place that moved, but a moment ago", _hold(position=1), _told(ago=59, position=3), False),
        ("a place that moved, a minute later", _hold(position=1), _told(ago=60, position=3), True),
        ("a place that moved less than a fifth", _hold(position=9), _told(ago=90, position=10), False),
        ("an estimate that moved", _hold(eta_in=300), _told(ago=90, eta_in=600), True),
        ("an estimate that moved little", _hold(eta_in=550), _told(ago=90, eta_in=600), False),
        ("an estimate that appeared", _hold(eta_in=550), _told(ago=90), True),
    ],
)
def test_what_is_news(case: str, hold: Hold, told: Told | None, news: bool) -> None:
    assert is_news(hold, told, now=NOW, monotonic=MONOTONIC) is news, case


def _page(outcome: dict[str, Any]) -> str:
    waiting = gang(GangState.WAITING, outcome=outcome)
    return waiting_message(waiting, _hold(position=2, eta_in=720), now=NOW)


def test_a_preempted_run_that_waits_keeps_saying_who_preempted_it_and_where_it_resumes() -> None:
    evicted = {"kind": "evicted", "reason": "Preempted by urgent (team ops, priority 90)", "last_commit_step": 120}
    assert _page(evicted) == (
        "Preempted by urgent (team ops, priority 90); resumes from step 120; why; 2nd in line; starts in about 12 min"
    )
    assert _page({**evicted, "last_commit_step": None}).startswith(
        "Preempted by urgent (team ops, priority 90); starts over; why; "
    )


def test_a_run_whose_member_died_keeps_saying_so_while_it_waits_again() -> None:
    lost = {"kind": "lost", "lost_member": 1, "member_exits": {"1": -9}, "last_commit_step": 7}
    assert _page(lost).startswith("Member 1 died (signal 9) and its gang was stopped; resumes from step 7; why; ")


def test_a_run_that_never_ran_says_only_why_it_waits() -> None:
    assert _page({}) == "why; 2nd in line; starts in about 12 min"


def test_another_order_that_holds_the_run_is_news_though_the_code_is_the_same() -> None:
    frozen = Reason(code=ReasonCode.ADMISSION_FROZEN, text="admission to team a is frozen: frozen by ops: audit")
    back = Reason(code=ReasonCode.ADMISSION_FROZEN, text="held back by ops: data is missing")
    told = Told(code=frozen.code, position=None, eta=None, at=0.0, text=frozen.text)
    assert not is_news(Hold(run_id="g", reason=frozen), told, now=1.0, monotonic=1.0)
    assert is_news(Hold(run_id="g", reason=back), told, now=1.0, monotonic=1.0)


def _rooms(busy: bool, at: list[float]) -> list[int]:
    """What may be written at each of these moments (seconds), one after the other."""
    rooms, since = [], None
    for moment in at:
        room, since = room_for(busy, yielding_since=since, monotonic=MONOTONIC + moment)
        rooms.append(room)
    return rooms


def test_in_a_calm_reasons_are_told_as_they_come() -> None:
    assert _rooms(False, [0.0, 0.1, 0.2]) == [WRITES_AT_ONCE] * 3


def test_reasons_give_way_to_claims_for_ten_seconds_and_then_trickle() -> None:
    told = _rooms(True, [0.0, 5.0, 9.9, 10.0, 10.1, 10.9, 11.1, 11.2, 12.2])
    assert told == [0, 0, 0, WRITES_AT_ONCE, 0, 0, WRITES_AT_ONCE, 0, WRITES_AT_ONCE]


def test_a_calm_between_two_crowds_ends_the_trickle() -> None:
    _, since = room_for(True, yielding_since=MONOTONIC - 60, monotonic=MONOTONIC)
    _, since = room_for(False, yielding_since=since, monotonic=MONOTONIC + 2)
    assert room_for(True, yielding_since=since, monotonic=MONOTONIC + 3) == (0, MONOTONIC + 3)
