"""Devices pass on, outcomes are kept until Prefect knows them, and nothing counts twice.

T35 is kueue#14811, T42 ray#19131.
"""

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import LATER, POOL, admitted, held, known, launching, on, running, waiting
from tests.fixtures.clock import ManualClock


def test_the_promised_gang_moves_up_when_the_holder_releases_its_devices(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v", "n1/0", "n1/1")
    admitted(ledger, fence, "b", "n1/0", "n1/2", victims=("v",))

    assert ledger.release_devices(fence, "v", 1)

    assert held(ledger) == {("n1/0", 0, "b"), ("n1/2", 0, "b")}
    assert known(ledger, "v").state is GangState.EVICTING
    assert ledger.check() == []


def test_t42_devices_that_are_released_twice_are_taken_from_the_one_who_moved_up(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v", "n1/0")
    admitted(ledger, fence, "b", "n1/0", victims=("v",))

    ledger.release_devices(fence, "v", 1)
    ledger.release_devices(fence, "v", 1)
    ledger.leave(fence, "v", 1, {"kind": "evicted"})

    assert held(ledger) == {("n1/0", 0, "b")}


def test_a_preemptor_cancelled_behind_its_barrier_gives_up_its_promises_with_its_devices(
    ledger: Ledger, fence: Fence
) -> None:
    running(ledger, fence, "v", "n1/0")
    launching(ledger, fence, "b", "n1/0", "n1/1", victims=("v",))

    ledger.release_devices(fence, "b", 1)

    assert held(ledger) == {("n1/0", 0, "v")}
    assert ledger.check() == []


def test_a_release_of_another_attempt_changes_nothing(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")

    assert not ledger.release_devices(fence, "a", 2)

    assert held(ledger) == {("n1/0", 0, "a")}


def test_a_preemptor_that_starts_before_its_victims_are_seen_to_leave_stays_promised(
    ledger: Ledger, fence: Fence
) -> None:
    running(ledger, fence, "v", "n1/0")
    gang = launching(ledger, fence, "b", "n1/0", "n1/1", victims=("v",))
    ledger.started(fence, "b", gang.attempt, 50.0)

    ledger.release_devices(fence, "b", 7)
    assert ("n1/0", 1, "b") in held(ledger)
    ledger.release_devices(fence, "v", 1)

    assert held(ledger) == {("n1/0", 0, "b"), ("n1/1", 0, "b")}
    assert {h.state for h in ledger.holders(POOL)} == {"bound"}
    assert ledger.check() == []


def test_a_preemptor_that_leaves_gives_up_what_it_was_promised(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v", "n1/0")
    gang = launching(ledger, fence, "b", "n1/0", "n1/1", victims=("v",))

    ledger.leave(fence, "b", gang.attempt, {"kind": "cancelled"})

    assert held(ledger) == {("n1/0", 0, "v")}
    assert ledger.withdraw_eviction(fence, "v", 1)
    assert known(ledger, "v").state is GangState.RUNNING
    assert ledger.check() == []


@pytest.mark.parametrize("state", ["reserved", "launching", "running", "evicting"])
def test_a_gang_leaves_from_any_state_in_which_it_holds_devices(ledger: Ledger, fence: Fence, state: str) -> None:
    make = {"reserved": admitted, "launching": launching}.get(state, running)
    gang = make(ledger, fence, "a", "n1/0")
    if state == "evicting":
        ledger.evict(fence, ["a"], why="drain")
    assert known(ledger, "a").state == state

    assert ledger.leave(fence, "a", gang.attempt, {"kind": "exited", "flow_exit": 0})
    assert not ledger.leave(fence, "a", gang.attempt, {"kind": "lost"}), "the first outcome stays"

    left = known(ledger, "a")
    assert (left.state, left.outcome) == (GangState.LEAVING, {"kind": "exited", "flow_exit": 0})
    assert held(ledger) == set()
    assert ledger.evictions(POOL) == []
    assert ledger.check() == []


def test_an_evicted_gang_waits_again_with_its_first_submit_time(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")
    ledger.evict(fence, ["a"], why="priority")
    ledger.leave(fence, "a", gang.attempt, {"kind": "evicted"})

    assert ledger.requeue(fence, "a", gang.attempt, evicted=True, not_before=70.0)
    assert not ledger.requeue(fence, "a", gang.attempt, evicted=True), "counted once"

    back = known(ledger, "a")
    assert (back.state, back.evictions, back.infrastructure_restarts) == (GangState.WAITING, 1, 0)
    assert (back.submitted_at, back.not_before, back.placement, back.attempt) == (10, 70.0, None, 1)
    assert [e.state for e in ledger.evictions(POOL, open_only=False)] == ["left"]


def test_what_a_run_has_had_adds_up_over_its_attempts_and_counts_anew_from_its_lift(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    began = running(ledger, fence, "a", "n1/0", "n1/1").launched_at
    assert began is not None
    clock.advance(30.0)
    ledger.leave(fence, "a", 1, {"kind": "evicted"})
    ledger.leave(fence, "a", 1, {"kind": "evicted"})
    first = known(ledger, "a").attained_seconds
    assert first == pytest.approx(2 * (clock.now() - began)), "charged once, for two devices"
    ledger.requeue(fence, "a", 1, evicted=True)
    assert known(ledger, "a").waiting_since == clock.now()

    ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    ledger.claimed(fence, "a", 2, user_retries=None)
    ledger.started(fence, "a", 2, clock.now())
    clock.advance(10.0)
    ledger.leave(fence, "a", 2, {"kind": "evicted"})
    assert known(ledger, "a").attained_seconds == pytest.approx(first + 10.0)
    ledger.requeue(fence, "a", 2, evicted=True)

    ledger.admit(fence, "a", on("n1/0", "n1/1"), expires_at=LATER, lifted=True)

    assert (known(ledger, "a").attained_seconds, known(ledger, "a").lifted) == (0.0, True)


def test_a_gang_lost_to_its_platform_is_counted_apart_from_evictions(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")
    ledger.leave(fence, "a", gang.attempt, {"kind": "lost"})

    ledger.requeue(fence, "a", gang.attempt, evicted=False, infrastructure=True)

    assert (known(ledger, "a").evictions, known(ledger, "a").infrastructure_restarts) == (0, 1)


def test_a_gang_is_not_requeued_before_it_has_left(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")

    assert not ledger.requeue(fence, "a", 1, evicted=True)

    assert known(ledger, "a").state is GangState.RUNNING


def test_a_finished_gang_ends_in_the_state_that_prefect_got(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")
    assert not ledger.end(fence, "a", gang.attempt, final_state="COMPLETED"), "it still runs"
    ledger.leave(fence, "a", gang.attempt, {"kind": "exited"})

    assert ledger.end(fence, "a", gang.attempt, final_state="COMPLETED")
    assert not ledger.end(fence, "a", gang.attempt, final_state="CRASHED")

    ended = known(ledger, "a")
    assert (ended.state, ended.final_state, ended.placement) == (GangState.ENDED, "COMPLETED", None)
    assert not ledger.requeue(fence, "a", gang.attempt, evicted=True), "a finished run is not run again"


def test_a_waiting_gang_may_end_too(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a")])

    assert ledger.end(fence, "a", 0, final_state="CANCELLED")


def test_only_running_and_launching_gangs_are_evicted(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("waiting")])
    admitted(ledger, fence, "reserved", "n1/0")
    launching(ledger, fence, "launching", "n1/1")
    running(ledger, fence, "running", "n1/2")
    everyone = ["waiting", "reserved", "launching", "running", "nobody"]

    assert ledger.evict(fence, everyone, why="drain of n1") == ["launching", "running"]
    assert ledger.evict(fence, everyone, why="again") == []

    assert [(e.run_id, e.attempt, e.for_run, e.why) for e in ledger.evictions(POOL)] == [
        ("launching", 1, None, "drain of n1"),
        ("running", 1, None, "drain of n1"),
    ]
    assert ledger.check() == []


def test_t35_a_gang_is_evicted_and_its_devices_are_reserved_for_it_all_the_same(ledger: Ledger, fence: Fence) -> None:
    """Leaving is one step: whoever has left holds nothing and is evicted no more, however often that is said."""
    running(ledger, fence, "v", "n1/0", "n1/1")
    ledger.evict(fence, ["v"], why="drain of n1")
    assert held(ledger) == {("n1/0", 0, "v"), ("n1/1", 0, "v")}, "its processes are still there"

    for _ in range(2):
        ledger.leave(fence, "v", 1, {"kind": "evicted"})
        assert known(ledger, "v").state is GangState.LEAVING
        assert held(ledger) == set() and ledger.check() == []
    ledger.requeue(fence, "v", 1, evicted=True)
    assert ledger.evictions(POOL) == [] and known(ledger, "v").evictions == 1
    assert ledger.leave(fence, "v", 1, {"kind": "evicted"}) is False
    assert known(ledger, "v").state is GangState.WAITING


@pytest.mark.parametrize(("make", "state"), [(running, GangState.RUNNING), (launching, GangState.LAUNCHING)])
def test_a_withdrawn_eviction_leaves_the_gang_as_it_was(ledger: Ledger, fence: Fence, make, state: GangState) -> None:
    gang = make(ledger, fence, "a", "n1/0")
    ledger.evict(fence, ["a"], why="mistake")

    assert ledger.withdraw_eviction(fence, "a", gang.attempt)
    assert not ledger.withdraw_eviction(fence, "a", gang.attempt)

    assert known(ledger, "a").state is state
    assert [e.state for e in ledger.evictions(POOL, open_only=False)] == ["withdrawn"]
    assert ledger.evict(fence, ["a"], why="now really") == ["a"]
    assert ledger.check() == []


def test_an_eviction_is_not_withdrawn_once_the_devices_are_gone_or_promised(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "gone", "n1/0")
    running(ledger, fence, "promised", "n1/1")
    ledger.evict(fence, ["gone"], why="drain")
    ledger.release_devices(fence, "gone", 1)
    admitted(ledger, fence, "b", "n1/1", victims=("promised",))

    assert not ledger.withdraw_eviction(fence, "gone", 1)
    assert not ledger.withdraw_eviction(fence, "promised", 1)

    assert known(ledger, "promised").state is GangState.EVICTING


def test_a_gang_that_starts_while_it_is_evicted_goes_on_leaving(ledger: Ledger, fence: Fence) -> None:
    gang = launching(ledger, fence, "a", "n1/0")
    ledger.evict(fence, ["a"], why="drain")

    assert ledger.started(fence, "a", gang.attempt, 44.0)

    assert (known(ledger, "a").state, known(ledger, "a").launched_at) == (GangState.EVICTING, 44.0)


def test_commits_set_the_first_once_and_the_newest_always(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")

    assert ledger.committed(fence, "a", 1, at=100.0, step=5, seconds=0.5)
    assert ledger.committed(fence, "a", 1, at=200.0, step=9, seconds=0.7)
    assert not ledger.committed(fence, "a", 1, at=100.0, step=5, seconds=0.5), "an event that came twice"
    assert not ledger.committed(fence, "a", 2, at=300.0, step=99, seconds=9.0), "another attempt's"

    gang = known(ledger, "a")
    assert (gang.first_commit_at, gang.last_commit_at, gang.last_step, gang.checkpoint_seconds) == (100, 200, 9, 0.7)


def test_progress_keeps_what_it_does_not_mention(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "a", "n1/0")

    ledger.progressed(fence, "a", 1, has_on_evict=True)
    ledger.progressed(fence, "a", 1, step=3, metrics={"loss": 1.5})
    ledger.progressed(fence, "a", 1, step=4)
    assert not ledger.progressed(fence, "a", 1)
    assert not ledger.progressed(fence, "a", 2, step=9)
    ledger.timed(fence, "a", 1, checkpoint_seconds=0.25)
    ledger.timed(fence, "a", 1, restart_seconds=4.0)

    gang = known(ledger, "a")
    assert (gang.has_on_evict, gang.reported_step, gang.metrics) == (True, 4, {"loss": 1.5})
    assert (gang.checkpoint_seconds, gang.restart_seconds) == (0.25, 4.0)


def test_usage_is_charged_from_admission_to_release_whether_or_not_it_was_accrued_between(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    ledger.enqueue(fence, [waiting("a", team="ml"), waiting("b", team="web"), waiting("c", team="ml")])
    ledger.accrue(fence, clock.now())
    assert ledger.usage(POOL) == {}

    ledger.admit(fence, "a", on("n1/0", "n1/1"), expires_at=LATER)
    clock.advance(10)
    ledger.admit(fence, "b", on("n1/2"), expires_at=LATER)
    ledger.accrue(fence, clock.now())
    assert ledger.usage(POOL) == {"ml": 20.0, "web": 0.0}
    clock.advance(5)
    ledger.leave(fence, "a", 1, {})
    clock.advance(100)
    ledger.accrue(fence, clock.now())

    assert ledger.usage(POOL) == {"ml": 30.0, "web": 105.0}


def test_a_promised_device_is_charged_to_its_holder_until_it_moves_up(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    ledger.enqueue(fence, [waiting("v", team="low"), waiting("b", team="high")])
    ledger.admit(fence, "v", on("n1/0"), expires_at=LATER)
    ledger.claimed(fence, "v", 1, user_retries=None)
    ledger.admit(fence, "b", on("n1/0"), victims=["v"], expires_at=LATER)
    clock.advance(7)
    ledger.release_devices(fence, "v", 1)
    clock.advance(3)
    ledger.accrue(fence, clock.now())

    assert ledger.usage(POOL) == {"low": 7.0, "high": 3.0}


def test_a_wall_clock_that_goes_back_charges_nothing(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    running(ledger, fence, "a", "n1/0")
    clock.seconds -= 3600
    ledger.accrue(fence, clock.now())
    assert ledger.usage(POOL) == {"default": 0.0}

    clock.advance(4)
    ledger.accrue(fence, clock.now())

    assert ledger.usage(POOL) == {"default": 4.0}


def test_a_waiting_gang_is_remembered_with_those_it_was_evicted_for(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "v", "n1/0")
    running(ledger, fence, "w", "n1/1")
    admitted(ledger, fence, "b", "n1/0", victims=("v",))
    ledger.evict(fence, ["w"], why="drain of n1")
    assert ledger.preemptors(POOL) == {}, "none of them waits yet"
    for run_id in ("v", "w"):
        ledger.leave(fence, run_id, 1, {"kind": "evicted"})
        ledger.requeue(fence, run_id, 1, evicted=True)

    assert ledger.preemptors(POOL) == {"v": ("b",)}


def test_evictions_for_others_are_counted_by_team_from_a_time_on(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    running(ledger, fence, "v", "n1/0")
    running(ledger, fence, "w", "n1/1")
    admitted(ledger, fence, "b", "n1/0", victims=("v",))
    ledger.evict(fence, ["w"], why="drain of n1")
    at = clock.now()

    assert ledger.evicted_since(POOL, at) == [("v", "default", at, "b")]
    assert ledger.evicted_since(POOL, at + 1) == []
