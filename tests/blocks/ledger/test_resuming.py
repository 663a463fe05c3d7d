"""A gang that makes room by going on elsewhere, or smaller, has its place from the notice until it runs there."""

import pytest

from dsec_blocks.ledger import AdmissionRequest, Fence, Ledger, Resumption
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import LATER, POOL, admitted, expired, held, known, on, running, waiting
from tests.fixtures.clock import ManualClock

WHY = "Moves to make room for run of big"
EVICTED = {"kind": "evicted", "at": 60.0, "reason": WHY, "last_commit_step": 7}


def to(run_id: str, *devices: str, expires_at: float = LATER) -> Resumption:
    return Resumption(run_id=run_id, placement=on(*devices), why=WHY, expires_at=expires_at)


def moving(ledger: Ledger, fence: Fence, *where: str, expires_at: float = LATER) -> None:
    """Gang m runs on n1/0-1, and big, which gets the rest of n1, has it go on at `where`."""
    running(ledger, fence, "m", "n1/0", "n1/1")
    ledger.enqueue(fence, [waiting("big")])
    wanted = [f"n1/{index}" for index in range(4) if f"n1/{index}" not in where]
    ledger.admit(
        fence, "big", on(*wanted), victims=["m"], expires_at=LATER, why="Preempted by run of big",
        resumptions=[to("m", *where, expires_at=expires_at)],
    )  # fmt: skip
    assert ledger.check() == []


def test_a_newcomer_does_not_get_the_place_that_a_moving_gang_was_promised(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    ledger.enqueue(fence, [waiting("newcomer")])

    with pytest.raises(ReservationConflict, match="n2/2 on n2 is held by run m"):
        ledger.admit(fence, "newcomer", on("n2/2", "n2/3"), expires_at=LATER)

    assert known(ledger, "newcomer").state is GangState.WAITING
    assert {row for row in held(ledger) if row[0].startswith("n2")} == {("n2/2", 0, "m"), ("n2/3", 0, "m")}


def test_a_newcomer_cannot_name_the_mover_as_its_victim_to_get_that_place(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    ledger.enqueue(fence, [waiting("newcomer")])

    with pytest.raises(ReservationConflict):
        ledger.admit(fence, "newcomer", on("n2/2"), victims=["m"], expires_at=LATER)


def test_a_moved_gang_that_has_left_is_reserved_where_it_goes_on_and_never_waits(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    [eviction] = ledger.evictions(POOL)
    assert (eviction.run_id, eviction.for_run, eviction.why) == ("m", "big", WHY)

    ledger.release_devices(fence, "m", 1)
    ledger.leave(fence, "m", 1, EVICTED)
    assert known(ledger, "m").resumes_at == on("n2/2", "n2/3")
    assert ledger.check() == []
    assert ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0)

    gang = known(ledger, "m")
    assert (gang.state, gang.attempt, gang.placement) == (GangState.RESERVED, 2, on("n2/2", "n2/3"))
    assert (gang.evictions, gang.expires_at, gang.resumes_at) == (1, 900.0, None)
    assert (gang.launched_at, gang.outcome) == (None, {})
    assert {row for row in held(ledger) if row[2] == "big"} == {(f"n1/{index}", 0, "big") for index in range(4)}
    assert not ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0), "counted once"
    assert ledger.check() == []


def test_a_shrinking_gang_keeps_its_devices_while_the_others_go_to_whom_it_shrinks_for(
    ledger: Ledger, fence: Fence
) -> None:
    moving(ledger, fence, "n1/0")
    assert held(ledger) >= {("n1/0", 0, "m"), ("n1/0", 1, "m"), ("n1/1", 0, "m"), ("n1/1", 1, "big")}

    ledger.release_devices(fence, "m", 1)
    assert held(ledger) >= {("n1/0", 0, "m"), ("n1/1", 0, "big")}
    assert ledger.check() == []
    ledger.leave(fence, "m", 1, EVICTED)
    ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0)

    assert known(ledger, "m").placement == on("n1/0")
    assert ledger.check() == []


def test_a_gang_grows_into_free_devices_beside_its_own_and_not_into_taken_ones(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "m", "n1/0")
    admitted(ledger, fence, "other", "n2/1")

    grows = {"why": "Grows from 1 to 2 nodes", "for_run": "m"}
    assert ledger.evict(fence, ["m"], resumption=to("m", "n1/0", "n2/1"), **grows) == []
    assert known(ledger, "m").state is GangState.RUNNING
    assert ledger.evict(fence, ["m"], resumption=to("m", "n1/0", "n2/0"), **grows) == ["m"]

    assert held(ledger) == {("n1/0", 0, "m"), ("n1/0", 1, "m"), ("n2/0", 0, "m"), ("n2/1", 0, "other")}
    ledger.leave(fence, "m", 1, EVICTED)
    ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0)
    assert known(ledger, "m").placement == on("n1/0", "n2/0")
    assert ledger.check() == []


def test_a_place_that_was_taken_meanwhile_admits_nobody_and_moves_nobody(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "m", "n1/0", "n1/1")
    admitted(ledger, fence, "other", "n2/3")
    ledger.enqueue(fence, [waiting("big")])

    with pytest.raises(ReservationConflict, match="n2/3"):
        ledger.admit(
            fence, "big", on("n1/0", "n1/1"), victims=["m"], expires_at=LATER, resumptions=[to("m", "n2/2", "n2/3")]
        )

    assert known(ledger, "m").state is GangState.RUNNING
    assert held(ledger) == {("n1/0", 0, "m"), ("n1/1", 0, "m"), ("n2/3", 0, "other")}


def test_two_of_one_batch_are_not_moved_to_the_same_place(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")
    running(ledger, fence, "b", "n2/0")
    ledger.enqueue(fence, [waiting("x"), waiting("y")])

    def asks(run_id: str, victim: str, device: str) -> AdmissionRequest:
        return AdmissionRequest(
            run_id=run_id, placement=on(device), expires_at=LATER, victims=[victim], resumptions=[to(victim, "n3/0")]
        )

    first, second = ledger.admit_all(fence, [asks("x", "a", "n1/0"), asks("y", "b", "n2/0")])

    assert not isinstance(first, ReservationConflict)
    assert isinstance(second, ReservationConflict)
    assert known(ledger, "b").state is GangState.RUNNING
    assert ledger.check() == []


def test_a_withdrawn_move_gives_its_place_up(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    assert not ledger.withdraw_eviction(fence, "m", 1), "its devices are still promised"

    assert ledger.undo_admission(fence, "big", 1, why="cancelled") == ["m"]
    assert ledger.withdraw_eviction(fence, "m", 1)

    gang = known(ledger, "m")
    assert (gang.state, gang.resumes_at, gang.expires_at) == (GangState.RUNNING, None, None)
    assert held(ledger) == {("n1/0", 0, "m"), ("n1/1", 0, "m")}
    assert ledger.check() == []


def test_a_withdrawn_shrinking_gives_nothing_up(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n1/0")
    ledger.undo_admission(fence, "big", 1, why="cancelled")

    assert ledger.withdraw_eviction(fence, "m", 1)

    assert held(ledger) == {("n1/0", 0, "m"), ("n1/1", 0, "m")}
    assert ledger.check() == []


@pytest.mark.parametrize("where", [("n2/2", "n2/3"), ("n1/0",)], ids=["moving", "shrinking"])
def test_a_run_that_ends_while_it_is_on_its_way_leaves_nothing_reserved(
    ledger: Ledger, fence: Fence, where: tuple[str, ...]
) -> None:
    moving(ledger, fence, *where)
    ledger.leave(fence, "m", 1, {"kind": "exited", "at": 60.0, "flow_exit": 0})

    assert ledger.end(fence, "m", 1, final_state="Completed")

    assert {run for _, _, run in held(ledger)} == {"big"}
    assert known(ledger, "m").resumes_at is None
    assert ledger.check() == []


def test_a_gang_that_died_on_its_way_waits_in_line_and_gives_its_place_up(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    ledger.leave(fence, "m", 1, {"kind": "lost", "at": 60.0})

    assert ledger.requeue(fence, "m", 1, evicted=False, infrastructure=True, not_before=70.0)

    gang = known(ledger, "m")
    assert (gang.state, gang.attempt, gang.infrastructure_restarts) == (GangState.WAITING, 1, 1)
    assert {run for _, _, run in held(ledger)} == {"big"}
    assert ledger.check() == []


def test_a_place_nobody_came_to_in_time_is_free_again_and_its_gang_waits(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    moving(ledger, fence, "n2/2", "n2/3", expires_at=500.0)
    assert expired(ledger, 499.0) == []
    ledger.leave(fence, "m", 1, EVICTED)
    assert expired(ledger, 500.0) == ["m"]

    ledger.undo_admission(fence, "m", 2, why="it has not left in time")

    assert {run for _, _, run in held(ledger)} == {"big"}
    assert expired(ledger, 500.0) == []
    assert ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0)
    assert known(ledger, "m").state is GangState.WAITING
    assert ledger.check() == []


def test_a_start_where_it_goes_on_that_fails_puts_it_back_in_line_like_any_other(ledger: Ledger, fence: Fence) -> None:
    moving(ledger, fence, "n2/2", "n2/3")
    ledger.leave(fence, "m", 1, EVICTED)
    ledger.requeue(fence, "m", 1, evicted=True, resume_by=900.0)
    assert expired(ledger, 900.0) == ["m"]

    assert ledger.undo_admission(fence, "m", 2, why="start failed") == []

    assert (known(ledger, "m").state, known(ledger, "m").submitted_at) == (GangState.WAITING, 10.0)
    assert ledger.check() == []


def test_a_victim_that_leaves_already_is_not_sent_elsewhere(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "m", "n1/0")
    ledger.evict(fence, ["m"], why="drained")
    ledger.enqueue(fence, [waiting("big")])

    ledger.admit(fence, "big", on("n1/0"), victims=["m"], expires_at=LATER, resumptions=[to("m", "n2/2")])

    assert known(ledger, "m").resumes_at is None
    assert held(ledger) == {("n1/0", 0, "m"), ("n1/0", 1, "big")}
    assert ledger.check() == []


def test_the_nodes_it_goes_to_begin_to_fetch_its_inputs_before_it_has_left(ledger: Ledger, fence: Fence) -> None:
    gang = admitted(ledger, fence, "m", "n1/0", inputs=("s3://bucket/data",))
    ledger.claimed(fence, "m", gang.attempt, user_retries=None)
    ledger.started(fence, "m", gang.attempt, 20.0)

    ledger.evict(fence, ["m"], why="moves", resumption=to("m", "n2/2"))

    assert [(order.node, order.attempt) for order in ledger.prefetches_for("n2")] == [("n2", 2)]
    assert ledger.check() == []
