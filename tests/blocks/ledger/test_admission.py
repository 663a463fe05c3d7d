"""A gang gets all of its devices or none, whatever happens beside it.

T27 is scheduler-plugins#713 and volcano#2083, T28 scheduler-plugins#930.
"""

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.errors import ReservationConflict, StaleAttempt
from dsec_blocks.model.gangs import CARDS, GangState
from tests.blocks.ledger.gangs import LATER, POOL, admitted, expired, held, known, launching, on, running, waiting
from tests.fixtures.clock import ManualClock


def test_an_admitted_gang_holds_every_device_of_its_placement(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    ledger.enqueue(fence, [waiting("a")])

    gang = ledger.admit(fence, "a", on("n1/0", "n1/1", "n2/0"), expires_at=LATER)

    assert gang == known(ledger, "a")
    assert (gang.state, gang.attempt, gang.admitted_at, gang.expires_at) == (GangState.RESERVED, 1, clock.now(), LATER)
    assert gang.placement == on("n1/0", "n1/1", "n2/0")
    assert held(ledger) == {("n1/0", 0, "a"), ("n1/1", 0, "a"), ("n2/0", 0, "a")}
    first = ledger.holders(POOL)[0]
    assert (first.node, first.state, first.attempt, first.expires_at) == ("n1", "reserved", 1, LATER)
    assert ledger.check() == []


def test_a_gang_without_devices_is_admitted_without_reservations(ledger: Ledger, fence: Fence) -> None:
    assert admitted(ledger, fence, "cpu").state is GangState.RESERVED
    assert held(ledger) == set()
    assert ledger.check() == []


def test_t28_of_two_members_one_starts_because_the_other_lost_its_device_to_somebody_in_between(
    ledger: Ledger, fence: Fence
) -> None:
    running(ledger, fence, "a", "n1/1")
    ledger.enqueue(fence, [waiting("b")])
    before = known(ledger, "b")

    with pytest.raises(ReservationConflict, match=r"device n1/1 on n1 is held by run a; nothing was reserved"):
        ledger.admit(fence, "b", on("n1/0", "n1/1", "n1/2"), expires_at=LATER)

    assert known(ledger, "b") == before
    assert held(ledger) == {("n1/1", 0, "a")}


def test_a_conflict_leaves_the_victims_alone_too(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "victim", "n1/0")
    running(ledger, fence, "bystander", "n1/1")
    ledger.enqueue(fence, [waiting("b")])

    with pytest.raises(ReservationConflict):
        ledger.admit(fence, "b", on("n1/0", "n1/1"), victims=["victim"], expires_at=LATER)

    assert known(ledger, "victim").state is GangState.RUNNING
    assert ledger.evictions(POOL, open_only=False) == []
    assert ledger.check() == []


@pytest.mark.parametrize("advance", ["admit", "start", "leave"])
def test_a_gang_is_admitted_only_while_it_waits(ledger: Ledger, fence: Fence, advance: str) -> None:
    gang = admitted(ledger, fence, "a", "n1/0")
    if advance == "start":
        ledger.claimed(fence, "a", gang.attempt, user_retries=None)
    if advance == "leave":
        ledger.leave(fence, "a", gang.attempt, {})
    before = known(ledger, "a")

    with pytest.raises(ReservationConflict, match=before.state):
        ledger.admit(fence, "a", on("n1/1"), expires_at=LATER)

    assert known(ledger, "a") == before


def test_an_unknown_run_is_not_admitted(ledger: Ledger, fence: Fence) -> None:
    with pytest.raises(ReservationConflict, match="unknown to the ledger"):
        ledger.admit(fence, "nobody", on("n1/0"), expires_at=LATER)


def test_a_placement_that_names_a_device_twice_is_refused(ledger: Ledger, fence: Fence) -> None:
    with pytest.raises(ReservationConflict, match="names a device twice"):
        admitted(ledger, fence, "a", "n1/0", "n1/0")
    assert held(ledger) == set()


def test_a_device_is_exclusive_across_pools(ledger: Ledger, fence: Fence) -> None:
    other = ledger.take_lease("other", "leader", seen=None)
    assert other is not None
    admitted(ledger, fence, "a", "n1/0")

    with pytest.raises(ReservationConflict):
        admitted(ledger, other, "b", "n1/0")


def test_victims_devices_are_promised_behind_them_and_free_ones_are_held(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v1", "n1/0", "n1/1")
    launching(ledger, fence, "v2", "n2/0")

    ledger.enqueue(fence, [waiting("urgent")])
    ledger.admit(
        fence,
        "urgent",
        on("n1/0", "n2/0", "n3/0"),
        victims=["v1", "v2"],
        expires_at=LATER,
        why="priority 90",
        costs={"v1": 12.5},
    )

    assert held(ledger) == {
        ("n1/0", 0, "v1"), ("n1/1", 0, "v1"), ("n2/0", 0, "v2"),
        ("n1/0", 1, "urgent"), ("n2/0", 1, "urgent"), ("n3/0", 0, "urgent"),
    }  # fmt: skip
    assert {known(ledger, v).state for v in ("v1", "v2")} == {GangState.EVICTING}
    told = {eviction.run_id: eviction for eviction in ledger.evictions(POOL)}
    assert (told["v1"].for_run, told["v1"].why, told["v1"].cost) == ("urgent", "priority 90", 12.5)
    assert told["v2"].cost is None
    assert ledger.check() == []


def test_a_gang_that_leaves_anyway_may_be_followed_without_naming_it(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")
    ledger.evict(fence, ["a"], why="drain")

    admitted(ledger, fence, "b", "n1/0")

    assert ("n1/0", 1, "b") in held(ledger)
    assert [e.for_run for e in ledger.evictions(POOL)] == [None], "the drain stays the reason"


def test_a_device_is_promised_only_once(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0", "n1/1")
    admitted(ledger, fence, "b", "n1/0", victims=("a",))

    with pytest.raises(ReservationConflict, match="promised"):
        admitted(ledger, fence, "c", "n1/0", "n1/2")

    assert {run for _device, _turn, run in held(ledger)} == {"a", "b"}
    admitted(ledger, fence, "d", "n1/1")
    assert ledger.check() == []


def test_a_victim_that_has_not_started_is_not_evicted(ledger: Ledger, fence: Fence) -> None:
    admitted(ledger, fence, "a", "n1/0")

    with pytest.raises(ReservationConflict, match="has not started"):
        admitted(ledger, fence, "b", "n1/0", victims=("a",))

    assert known(ledger, "a").state is GangState.RESERVED


def test_a_start_goes_from_reserved_to_launching_to_running(ledger: Ledger, fence: Fence) -> None:
    gang = admitted(ledger, fence, "a", "n1/0")

    ledger.claimed(fence, "a", gang.attempt, user_retries=2)
    assert (known(ledger, "a").state, known(ledger, "a").user_retries) == (GangState.LAUNCHING, 2)
    ledger.launched(fence, "a", gang.attempt, {"pid": 12})
    assert known(ledger, "a").launch == {"pid": 12}
    assert ledger.started(fence, "a", gang.attempt, 30.0)

    gang = known(ledger, "a")
    assert (gang.state, gang.launched_at, gang.expires_at) == (GangState.RUNNING, 30.0, None)
    assert {holding.state for holding in ledger.holders(POOL)} == {"bound"}


def test_each_step_of_a_start_may_be_repeated(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")

    ledger.claimed(fence, "a", gang.attempt, user_retries=9)
    ledger.launched(fence, "a", gang.attempt, {})
    assert not ledger.started(fence, "a", gang.attempt, 99.0)

    assert known(ledger, "a") == gang


@pytest.mark.parametrize("first", ["launched", "observed"])
def test_the_cards_that_a_node_chose_stay_beside_what_the_launch_left_whichever_is_told_first(
    ledger: Ledger, fence: Fence, first: str
) -> None:
    gang = launching(ledger, fence, "a", "n1/0")
    cards = {"n1": ["GPU-a"]}
    told = [
        lambda: ledger.launched(fence, "a", gang.attempt, {"adapter": "kubernetes"}),
        lambda: ledger.observed_all(fence, [("a", gang.attempt, cards), ("a", gang.attempt + 1, {"n9": ["GPU-z"]})]),
    ]
    answers = [tell() for tell in (told if first == "launched" else reversed(told))]
    assert [True, False] in answers, "an attempt that is not the present one has no say"
    assert known(ledger, "a").launch == {"adapter": "kubernetes", CARDS: cards}
    ledger.undo_admission(fence, "a", gang.attempt, why="expired")
    again = ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    assert again.launch == {}, "the next attempt has cards of its own"


def test_a_launch_that_ends_after_its_admission_was_undone_is_told_to_stop(ledger: Ledger, fence: Fence) -> None:
    gang = launching(ledger, fence, "a", "n1/0")
    ledger.undo_admission(fence, "a", gang.attempt, why="expired")

    with pytest.raises(StaleAttempt, match=r"attempt 1: the ledger has undone it \(now waiting, attempt 1\)"):
        ledger.launched(fence, "a", gang.attempt, {"pid": 1})
    with pytest.raises(StaleAttempt):
        ledger.claimed(fence, "a", gang.attempt, user_retries=None)
    assert not ledger.started(fence, "a", gang.attempt, 5.0)

    ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    with pytest.raises(StaleAttempt):
        ledger.claimed(fence, "a", gang.attempt, user_retries=None)
    assert known(ledger, "a").state is GangState.RESERVED


def test_undoing_an_admission_gives_back_everything_and_names_the_victims(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v1", "n1/0")
    running(ledger, fence, "v2", "n1/1")
    ledger.evict(fence, ["v2"], why="operator")
    gang = admitted(ledger, fence, "b", "n1/0", "n1/1", "n1/2", victims=("v1",))

    assert ledger.undo_admission(fence, "b", gang.attempt, why="launch failed") == ["v1"]

    back = known(ledger, "b")
    assert (back.state, back.placement, back.attempt, back.submitted_at) == (GangState.WAITING, None, 1, 10)
    assert held(ledger) == {("n1/0", 0, "v1"), ("n1/1", 0, "v2")}
    assert ledger.undo_admission(fence, "b", gang.attempt, why="again") == []
    assert ledger.check() == []


def test_a_running_gang_is_not_undone(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")

    assert ledger.undo_admission(fence, "a", gang.attempt, why="late") == []

    assert known(ledger, "a") == gang


def test_t27_members_that_were_reserved_and_never_bound_hold_their_devices_for_ever(
    ledger: Ledger, fence: Fence
) -> None:
    late = admitted(ledger, fence, "late", "n1/0", "n2/0", "n3/0")
    launching(ledger, fence, "launching", "n1/1")
    running(ledger, fence, "running", "n1/2")

    assert expired(ledger, LATER - 1) == []
    assert expired(ledger, LATER) == ["late"]

    ledger.undo_admission(fence, "late", late.attempt, why="not bound in time")
    assert held(ledger) == {("n1/1", 0, "launching"), ("n1/2", 0, "running")}, "all three together"
    assert known(ledger, "late").state is GangState.WAITING


def test_a_new_attempt_inherits_the_step_to_resume_from_and_nothing_else(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")
    ledger.progressed(fence, "a", 1, step=12, metrics={"loss": 0.5}, has_on_evict=True)
    ledger.committed(fence, "a", 1, at=40.0, step=10, seconds=0.25)
    ledger.launched(fence, "a", 1, {"pid": 4})
    ledger.leave(fence, "a", gang.attempt, {"kind": "evicted"})
    ledger.requeue(fence, "a", gang.attempt, evicted=True)

    again = ledger.admit(fence, "a", on("n2/0"), expires_at=LATER)

    assert (again.attempt, again.last_step, again.checkpoint_seconds, again.has_on_evict) == (2, 10, 0.25, True)
    assert (again.first_commit_at, again.last_commit_at, again.launched_at, again.reported_step) == (None,) * 4
    assert (again.metrics, again.launch, again.outcome) == ({}, {}, {})


def test_several_admissions_can_be_one_commit_and_a_conflict_among_them_undoes_only_itself(
    ledger: Ledger, fence: Fence
) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b"), waiting("c")])

    with ledger.transaction(at="test.cycle", fence=fence):
        ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
        with pytest.raises(ReservationConflict):
            ledger.admit(fence, "b", on("n1/1", "n1/0"), expires_at=LATER)
        ledger.admit(fence, "c", on("n1/1"), expires_at=LATER)

    assert held(ledger) == {("n1/0", 0, "a"), ("n1/1", 0, "c")}
    assert known(ledger, "b").state is GangState.WAITING

    with pytest.raises(RuntimeError), ledger.transaction(at="test.cycle", fence=fence):
        ledger.undo_admission(fence, "a", 1, why="all of it is undone")
        raise RuntimeError
    assert known(ledger, "a").state is GangState.RESERVED
