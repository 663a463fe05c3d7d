"""Many admissions, or many marks, in one transaction: each is still for itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import AdmissionRequest, Decision, Fence, Ledger
from dsec_blocks.model.errors import Fenced, LedgerError, ReservationConflict, StaleAttempt
from dsec_blocks.model.gangs import Gang, GangState
from tests.blocks.ledger.gangs import LATER, POOL, admitted, held, known, launching, on, running, waiting

PROGRAM = """
import sys
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import AdmissionRequest, Fence, Ledger
from tests.blocks.ledger.gangs import LATER, on
url, holder, token = sys.argv[1:4]
ledger = Ledger.open(url, clock=SystemClock())
names = {"a": "n1/0", "b": "n1/1", "c": "n1/1"}
requests = [AdmissionRequest(run_id=name, placement=on(device), expires_at=LATER) for name, device in names.items()]
print([type(answer).__name__ for answer in ledger.admit_all(Fence("pool", holder, int(token)), requests)])
"""


def _request(run_id: str, *devices: str, victims: tuple[str, ...] = (), why: str = "") -> AdmissionRequest:
    entry = Decision(at=1.0, pool=POOL, run_id=run_id, stage="plan", outcome="admit", why=why)
    return AdmissionRequest(run_id=run_id, placement=on(*devices), victims=victims, expires_at=LATER, entry=entry)


def _winners(answers: list[Gang | ReservationConflict]) -> list[str]:
    return [answer.run_id for answer in answers if isinstance(answer, Gang)]


def test_a_loser_in_a_batch_takes_nothing_from_the_others(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "old", "n2/0")
    ledger.enqueue(fence, [waiting(name) for name in "abcd"])
    before = known(ledger, "b")

    answers = ledger.admit_all(
        fence,
        [_request("a", "n1/0"), _request("b", "n1/1", "n1/0"), _request("c", "n1/1"), _request("d", "n2/0")],
    )

    assert _winners(answers) == ["a", "c"]
    assert "device n1/0 on n1 is held by run a" in str(answers[1])
    assert "device n2/0 on n2 is held by run old" in str(answers[3])
    assert answers[0] == known(ledger, "a") and answers[2] == known(ledger, "c")
    assert known(ledger, "b") == before
    assert held(ledger) == {("n1/0", 0, "a"), ("n1/1", 0, "c"), ("n2/0", 0, "old")}
    assert [entry.run_id for entry in ledger.decisions(POOL)] == ["a", "c"], "what did not happen is not in the log"
    assert ledger.check() == []


def test_the_same_gang_twice_in_a_batch_is_admitted_once(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a")])
    answers = ledger.admit_all(fence, [_request("a", "n1/0"), _request("a", "n1/1")])
    assert _winners(answers) == ["a"]
    assert "it is reserved, attempt 1" in str(answers[1])
    assert held(ledger) == {("n1/0", 0, "a")}


def test_an_unknown_gang_in_a_batch_is_its_own_trouble(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a")])
    answers = ledger.admit_all(fence, [_request("nobody", "n1/0"), _request("a", "n1/0")])
    assert _winners(answers) == ["a"]
    assert "unknown to the ledger" in str(answers[0])


def test_admissions_of_a_batch_see_the_victims_of_those_before_them(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v", "n1/0", "n1/1")
    ledger.enqueue(fence, [waiting(name) for name in "abcd"])

    answers = ledger.admit_all(
        fence,
        [
            _request("a", "n1/0", victims=("v",)),
            _request("b", "n1/1"),  # behind v, which leaves for a
            _request("c", "n1/0"),  # promised to a already
            _request("d", "n2/0", victims=("a",)),  # has only just been reserved
        ],
    )

    assert _winners(answers) == ["a", "b"]
    assert "promised" in str(answers[2]) and "has not started" in str(answers[3])
    assert held(ledger) == {("n1/0", 0, "v"), ("n1/1", 0, "v"), ("n1/0", 1, "a"), ("n1/1", 1, "b")}
    assert [(e.run_id, e.for_run) for e in ledger.evictions(POOL)] == [("v", "a")]
    assert ledger.check() == []


def test_an_empty_batch_is_nothing_to_write(ledger: Ledger, fence: Fence) -> None:
    assert ledger.admit_all(fence._replace(token=99), []) == []


def test_a_leader_that_was_replaced_admits_nobody_of_its_batch(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])
    ledger.resign(fence)
    assert ledger.take_lease(POOL, "successor", seen=None) is not None

    with pytest.raises(Fenced):
        ledger.admit_all(fence, [_request("a", "n1/0"), _request("b", "n1/1")])
    with pytest.raises(Fenced):
        ledger.claimed_all(fence, [("a", 1, None), ("b", 1, None)])

    assert held(ledger) == set()
    assert ledger.decisions(POOL) == []


def test_a_leader_replaced_between_two_batches_leaves_the_first_to_its_successor(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])
    ledger.admit_all(fence, [_request("a", "n1/0")])
    ledger.resign(fence)
    successor = ledger.take_lease(POOL, "successor", seen=None)
    assert successor is not None

    with pytest.raises(Fenced):
        ledger.admit_all(fence, [_request("b", "n1/1")])

    assert ledger.claimed_all(successor, [("a", 1, None)]) == [None]
    assert _winners(ledger.admit_all(successor, [_request("b", "n1/1")])) == ["b"]


def test_another_pools_leader_that_takes_a_device_in_between_costs_one_gang_its_place(
    ledger: Ledger, fence: Fence, ledger_url: str
) -> None:
    other = Ledger.open(ledger_url, clock=SystemClock())
    their_fence = other.take_lease("other", "leader of the other", seen=None)
    assert their_fence is not None
    other.enqueue(their_fence, [waiting("theirs", pool="other")])
    ledger.enqueue(fence, [waiting(name) for name in "abc"])
    answers: list[Gang | ReservationConflict] = []
    requests = [_request("a", "n1/0"), _request("b", "n1/1"), _request("c", "n1/2")]
    ours = threading.Thread(target=lambda: answers.extend(ledger.admit_all(fence, requests)))

    with other.transaction(at="test.race", fence=their_fence) as connection:
        other.admit(their_fence, "theirs", on("n1/1"), expires_at=LATER)
        ours.start()
        if connection.dialect.name == "postgresql":  # on SQLite it has to wait with its first statement
            _until(lambda: _waits_for_a_lock(ledger))
    ours.join(timeout=30)

    assert _winners(answers) == ["a", "c"]
    assert isinstance(answers[1], ReservationConflict)
    assert held(ledger) == {("n1/0", 0, "a"), ("n1/2", 0, "c")}
    assert [holding.run_id for holding in ledger.holders("other")] == ["theirs"]
    assert ledger.check() == []
    other.close()


def _waits_for_a_lock(ledger: Ledger) -> bool:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%reservations%'"
    with ledger._engine.connect() as connection:  # a transaction of its own: the view does not move inside one
        return bool(connection.execute(sa.text(waits)).scalar_one())


def _until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["kill_before", "kill_after"])
def test_a_process_killed_at_the_commit_of_a_batch_leaves_all_of_it_or_nothing(
    ledger: Ledger, fence: Fence, ledger_url: str, mode: str
) -> None:
    ledger.enqueue(fence, [waiting(name) for name in "abc"])

    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, ledger_url, fence.holder, str(fence.token)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "DSEC_FAULT": f"ledger.admit:{mode}"},
    )  # fmt: skip

    assert (process.returncode, process.stdout) == (-signal.SIGKILL, ""), process.stderr
    if mode == "kill_after":
        assert {name: known(ledger, name).state for name in "abc"} == {
            "a": GangState.RESERVED, "b": GangState.RESERVED, "c": GangState.WAITING,
        }  # fmt: skip
        assert held(ledger) == {("n1/0", 0, "a"), ("n1/1", 0, "b")}
    else:
        assert held(ledger) == set()
    assert ledger.check() == []
    again = ledger.admit_all(fence, [_request("a", "n1/0"), _request("b", "n1/1"), _request("c", "n1/2")])
    assert _winners(again) == (["c"] if mode == "kill_after" else ["a", "b", "c"])


def test_a_batch_whose_answer_was_lost_is_found_written(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])
    requests = [_request("a", "n1/0"), _request("b", "n1/1")]
    with monkeypatch.context() as patched:
        patched.setenv("DSEC_FAULT", "ledger.admit:lost")
        with pytest.raises(LedgerError):
            ledger.admit_all(fence, requests)
    assert {gang.run_id for gang in ledger.gangs(POOL, {GangState.RESERVED})} == {"a", "b"}
    assert len(ledger.decisions(POOL)) == 2
    assert _winners(ledger.admit_all(fence, requests)) == []


def test_marks_of_a_crowd_answer_each_gang_for_itself(ledger: Ledger, fence: Fence) -> None:
    for name, device in (("a", "n1/0"), ("b", "n1/1"), ("c", "n1/2")):
        admitted(ledger, fence, name, device)
    ledger.undo_admission(fence, "b", 1, why="expired")

    answers = ledger.claimed_all(fence, [("a", 1, 3), ("b", 1, None), ("c", 1, None), ("nobody", 1, None)])
    assert [type(answer) for answer in answers] == [type(None), StaleAttempt, type(None), StaleAttempt]
    assert (known(ledger, "a").user_retries, known(ledger, "b").state) == (3, GangState.WAITING)
    stale = ledger.launched_all(fence, [("b", 1, {}), ("a", 1, {"pid": 1}), ("c", 1, {"pid": 2})])
    assert isinstance(stale[0], StaleAttempt) and stale[1:] == [None, None]
    assert ledger.started_all(fence, [("a", 1, 20.0), ("b", 1, 20.0), ("a", 1, 21.0), ("c", 1, 22.0)]) == [
        True, False, False, True,
    ]  # fmt: skip
    assert {known(ledger, name).launched_at for name in "ac"} == {20.0, 22.0}
    assert {holding.state for holding in ledger.holders(POOL)} == {"bound"}
    assert ledger.check() == []


def test_a_crowd_that_leaves_and_comes_back_is_counted_one_by_one(ledger: Ledger, fence: Fence) -> None:
    for name, device in (("a", "n1/0"), ("b", "n1/1"), ("c", "n1/2")):
        running(ledger, fence, name, device)
    launching(ledger, fence, "d", "n1/3")

    assert ledger.release_all(fence, [("a", 1), ("b", 2)]) == [True, False]
    assert {run for _, _, run in held(ledger)} == {"b", "c", "d"}
    ends = [(name, 1, {"kind": "evicted"}) for name in ("a", "b", "c", "a")]
    assert ledger.leave_all(fence, ends) == [True, True, True, False]
    assert ledger.requeue_all(fence, [("a", 1, True, False, None), ("b", 1, False, True, 9.0)]) == [True, True]
    assert ledger.end_all(fence, [("c", 1, "Completed"), ("d", 1, "Completed")]) == [True, False]

    assert (known(ledger, "a").evictions, known(ledger, "a").infrastructure_restarts) == (1, 0)
    assert (known(ledger, "b").evictions, known(ledger, "b").infrastructure_restarts) == (0, 1)
    assert (known(ledger, "b").not_before, known(ledger, "c").final_state) == (9.0, "Completed")
    assert held(ledger) == {("n1/3", 0, "d")}
    assert ledger.check() == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("request", "{"),
        ("request", '{"nodes": 1, "sharing": "auto", "topology": "rack", "kind": "batch", "inputs": [], "wings": 2}'),
        ("state", "asleep"),
        ("metrics", "[1]"),
        ("placement", '[{"devices": []}]'),
        ("tags", "7"),
    ],
)
def test_a_damaged_row_is_named_with_its_column(
    ledger: Ledger, fence: Fence, statements: Callable[[str], None], column: str, value: str
) -> None:
    ledger.enqueue(fence, [waiting("good"), waiting("bad")])
    statements(f"UPDATE gangs SET {column} = '{value}' WHERE run_id = 'bad'")

    message = rf"run bad: its row in the ledger is damaged: {column} cannot be read \(.*\); restore a backup"
    with pytest.raises(LedgerError, match=message):
        ledger.gangs(POOL)
    with pytest.raises(LedgerError, match=message):
        ledger.gang("bad")
    assert known(ledger, "good").run_id == "good"
    with pytest.raises(LedgerError, match=message):
        ledger.admit_all(fence, [_request("good", "n1/0"), _request("bad", "n1/1")])
    assert held(ledger) == set(), "nobody is admitted by halves"
