"""Runs that wait are remembered, brought up to date, and never lose their place."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from tests.blocks.ledger.gangs import LATER, POOL, known, on, running, waiting
from tests.fixtures.clock import ManualClock


def test_a_run_that_was_enqueued_is_read_back_as_it_was_written(ledger: Ledger, fence: Fence) -> None:
    request = GangRequest(
        nodes=2,
        min_nodes=1,
        devices_per_node=4,
        gpu_model="H100",
        gpu_memory_bytes=80 << 30,
        topology=Topology.DOMAIN,
        kind=Kind.BATCH,
        priority=7,
        inputs=("s3://b/k",),
        env={"A": "1"},
        max_runtime_seconds=60.0,
    )
    gang = replace(waiting("a"), request=request, parent_run_id="parent", user_retries=3)

    assert ledger.enqueue(fence, [gang]) == ["a"]

    assert ledger.gang("a") == gang


def test_an_unknown_run_is_none(ledger: Ledger) -> None:
    assert ledger.gang("nobody") is None


def test_the_states_of_many_runs_are_read_at_once_and_unknown_ones_are_left_out(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a")])
    running(ledger, fence, "b", "n1/0")

    assert ledger.states(["a", "b", "nobody"]) == {"a": GangState.WAITING, "b": GangState.RUNNING}


def test_a_run_keeps_its_submit_time_when_it_is_enqueued_again(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a", submitted_at=10)])

    changed = replace(waiting("a", submitted_at=99, team="ml"), name="new", request=GangRequest(priority=5))
    assert ledger.enqueue(fence, [changed]) == []

    gang = known(ledger, "a")
    assert (gang.submitted_at, gang.eligible_at) == (10, 99)
    assert (gang.team, gang.name, gang.request.priority) == ("ml", "new", 5)


def test_a_queue_without_news_writes_nothing(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a")])
    void = fence._replace(token=99)

    assert ledger.enqueue(void, [waiting("a")]) == [], "it did not even look at the fence"


def test_a_running_gang_is_left_alone_by_enqueue(ledger: Ledger, fence: Fence) -> None:
    before = running(ledger, fence, "a", "n1/0")

    ledger.enqueue(fence, [waiting("a", team="other", submitted_at=77)])

    assert known(ledger, "a") == before


def test_a_run_retried_in_the_ui_waits_again_with_its_history(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "a", "n1/0")
    ledger.leave(fence, "a", gang.attempt, {"kind": "evicted"})
    ledger.requeue(fence, "a", gang.attempt, evicted=True)
    again = ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    ledger.leave(fence, "a", again.attempt, {"kind": "exited"})
    ledger.end(fence, "a", again.attempt, final_state="FAILED")

    assert ledger.enqueue(fence, [waiting("a", submitted_at=500)]) == ["a"]

    gang = known(ledger, "a")
    assert gang.state is GangState.WAITING
    assert (gang.attempt, gang.evictions, gang.submitted_at, gang.eligible_at) == (2, 1, 10, 500)
    assert gang.final_state is None and gang.outcome == {}


def test_runs_cancelled_elsewhere_end_here_unless_they_hold_devices(ledger: Ledger, fence: Fence) -> None:
    running(ledger, fence, "b", "n1/0")
    ledger.enqueue(fence, [waiting("a")])

    ledger.forget_waiting(fence, ["a", "b", "unknown"])

    assert known(ledger, "a").state is GangState.ENDED
    assert known(ledger, "b").state is GangState.RUNNING


def test_t56_a_gang_that_was_placed_still_has_the_reason_it_waited_for(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])

    ledger.set_reasons(fence, {"a": ("waits-for-capacity", "needs 2 GPU; 1 free")})
    assert (known(ledger, "a").reason_code, known(ledger, "a").reason) == ("waits-for-capacity", "needs 2 GPU; 1 free")
    assert known(ledger, "b").reason is None

    gang = ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    assert gang.reason is None and gang.reason_code is None


def test_gangs_come_in_the_order_of_their_first_submit(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("b", submitted_at=2), waiting("a", submitted_at=3), waiting("c", submitted_at=1)])
    running(ledger, fence, "d", "n1/0")

    assert [gang.run_id for gang in ledger.gangs(POOL, {GangState.WAITING})] == ["c", "b", "a"]
    assert [gang.run_id for gang in ledger.gangs(POOL, {GangState.RUNNING})] == ["d"]
    assert len(ledger.gangs(POOL)) == 4
    assert ledger.gangs("other pool") == []


@pytest.mark.parametrize("count", [1, 1500])
def test_any_number_of_runs_is_enqueued_at_once(ledger: Ledger, fence: Fence, count: int) -> None:
    gangs = [waiting(f"r{n}", submitted_at=n) for n in range(count)]

    assert len(ledger.enqueue(fence, gangs)) == count
    assert ledger.enqueue(fence, gangs) == []
    assert len(ledger.gangs(POOL)) == count


def test_a_gang_that_backs_off_says_until_when(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    ledger.enqueue(fence, [waiting("a")])
    gang = ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)

    ledger.undo_admission(fence, "a", gang.attempt, why="image not found", not_before=clock.now() + 60)

    gang = known(ledger, "a")
    assert gang.not_before == clock.now() + 60
    assert gang.outcome == {"kind": "failed-start", "message": "image not found"}


def test_those_who_wait_are_listed_first_submitted_first(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting("late", submitted_at=20), waiting("early", submitted_at=10)])
    running(ledger, fence, "runs", "n1/0")

    assert ledger.waiting(POOL) == ["early", "late"]


def test_what_is_read_inside_a_reading_is_of_one_state(ledger: Ledger, fence: Fence) -> None:
    with ledger.reading():
        assert ledger.gang("a") is None
        with ThreadPoolExecutor(1) as another:
            another.submit(ledger.enqueue, fence, [waiting("a")]).result()
        assert ledger.gang("a") is None
        assert ledger.states(["a"]) == {}

    assert known(ledger, "a").state is GangState.WAITING
