"""Marks of several kinds are one commit, and each is answered as if it had been written alone."""

import pytest

from dsec_blocks.ledger import Decision, Fence, Ledger
from dsec_blocks.model.errors import Fenced, LedgerError, StaleAttempt
from dsec_blocks.model.gangs import GangState
from dsec_workers.lifecycle.marks import Mark, write_marks
from tests.blocks.ledger.gangs import POOL, admitted, known, launching

ENTRY = Decision(at=1.0, pool=POOL, run_id="a", stage="start", outcome="started", why="")


class Commits:
    """How often a ledger was written to since it was made."""

    def __init__(self, ledger: Ledger) -> None:
        self.kinds: list[str] = []
        ledger.observe = lambda kind, _seconds, _failed: self.kinds.append(kind)

    @property
    def count(self) -> int:
        return self.kinds.count("write")


def _of_three_kinds(ledger: Ledger, fence: Fence) -> list[Mark]:
    """`a` has started, `b` was launched, `c` is gone, and `stale` was undone meanwhile."""
    for number, name in enumerate("abc"):
        launching(ledger, fence, name, f"n1/{number}")
    return [
        (ledger.started_all, ("a", 1, 20.0)),
        (ledger.launched_all, ("b", 1, {"pid": 7})),
        (ledger.started_all, ("c", 1, 20.0)),
        (ledger.launched_all, ("stale", 1, {})),
        (ledger.leave_all, ("c", 1, {"kind": "exited", "at": 21.0})),
    ]


def test_marks_of_several_kinds_are_one_commit_with_the_decisions(ledger: Ledger, fence: Fence) -> None:
    marks = _of_three_kinds(ledger, fence)
    commits = Commits(ledger)

    answers, is_logged = write_marks(ledger, fence, marks, [ENTRY])

    assert commits.count == 1 and is_logged
    assert (answers[0], answers[1], answers[2], answers[4]) == (True, None, True, True)
    assert isinstance(answers[3], StaleAttempt)
    assert known(ledger, "a").state is GangState.RUNNING and known(ledger, "b").launch == {"pid": 7}
    assert known(ledger, "c").state is GangState.LEAVING
    assert [entry.run_id for entry in ledger.decisions(POOL)] == ["a"]
    assert ledger.check() == []


@pytest.mark.parametrize("point", ["ledger.started", "ledger.launched", "ledger.leave", "ledger.decide"])
@pytest.mark.parametrize(("mode", "is_there"), [("error", False), ("lost", True)])
def test_a_commit_that_fails_fails_for_all_of_them_at_each_of_their_fault_points(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch, point: str, mode: str, is_there: bool
) -> None:
    marks = _of_three_kinds(ledger, fence)
    monkeypatch.setenv("DSEC_FAULT", f"{point}:{mode}")
    with pytest.raises(LedgerError, match=point):
        write_marks(ledger, fence, marks, [ENTRY])
    monkeypatch.delenv("DSEC_FAULT")

    there = [known(ledger, "a").launched_at, known(ledger, "b").launch, known(ledger, "c").outcome]
    assert [bool(each) for each in there] == [is_there] * 3
    assert bool(ledger.decisions(POOL)) is is_there
    assert write_marks(ledger, fence, marks, [])[0][0] is not is_there, "each may be repeated"
    assert ledger.check() == []


def test_a_kind_that_cannot_be_written_takes_nothing_from_the_others(ledger: Ledger, fence: Fence) -> None:
    marks = _of_three_kinds(ledger, fence)
    with ledger.transaction(at="test.damage") as connection:
        connection.exec_driver_sql("UPDATE gangs SET request = '[]' WHERE run_id = 'b'")
    marks.append((ledger.end_all, ("b", 1, "Completed")))

    answers, is_logged = write_marks(ledger, fence, marks, [ENTRY])

    assert isinstance(answers[5], LedgerError) and "run b: its row in the ledger is damaged" in str(answers[5])
    assert (answers[0], answers[1], answers[2], answers[4]) == (True, None, True, True)
    assert not is_logged and ledger.decisions(POOL) == []
    assert known(ledger, "c").state is GangState.LEAVING


def test_nothing_is_written_by_one_who_leads_no_longer(ledger: Ledger, fence: Fence) -> None:
    gang = admitted(ledger, fence, "a", "n1/0")
    void = fence._replace(token=fence.token + 1)
    with pytest.raises(Fenced):
        write_marks(ledger, void, [(ledger.claimed_all, ("a", 1, None)), (ledger.end_all, ("a", 1, "Failed"))], [ENTRY])
    assert known(ledger, "a") == gang and ledger.decisions(POOL) == []
