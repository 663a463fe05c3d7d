"""Orders to fetch come and go with the reservation, in the same transactions."""

import pytest

from dsec_blocks.ledger import Fence, Ledger, PrefetchState
from dsec_blocks.model.errors import LedgerError, ReservationConflict
from dsec_blocks.model.names import ENV_FAULT
from tests.blocks.ledger.gangs import LATER, POOL, known, on, waiting
from tests.fixtures.clock import ManualClock

INPUTS = ("s3://models/llama", "s3://data/cifar")


def _admit(ledger: Ledger, fence: Fence, run_id: str, *devices: str, inputs: tuple[str, ...] = INPUTS) -> int:
    ledger.enqueue(fence, [waiting(run_id, inputs=inputs)])
    return ledger.admit(fence, run_id, on(*devices), expires_at=LATER).attempt


def _progress(ledger: Ledger, state: PrefetchState, *, at: float, done: int = 0, attempt: int = 1, **more) -> bool:
    return ledger.prefetch_progress("n1", "a", attempt, bytes_done=done, bytes_total=10, state=state, at=at, **more)


def test_every_node_of_a_reservation_is_told_to_fetch(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    _admit(ledger, fence, "a", "n1/0", "n1/1", "n2/0", "n2/1")
    _admit(ledger, fence, "b", "n1/2", inputs=())
    assert [order.node for order in ledger.prefetches_of("a")] == ["n1", "n2"]
    (order,) = ledger.prefetches_for("n1")
    assert (order.run_id, order.attempt, order.addresses, order.pool) == ("a", 1, INPUTS, POOL)
    assert order.state is PrefetchState.ORDERED and order.is_open and order.ordered_at == clock.now()
    assert ledger.prefetches_of("b") == [] and ledger.prefetches_for("n3") == []
    assert ledger.check() == []


def test_a_reservation_that_fails_orders_nothing(ledger: Ledger, fence: Fence) -> None:
    _admit(ledger, fence, "a", "n1/0")
    with pytest.raises(ReservationConflict):
        _admit(ledger, fence, "b", "n1/0", "n2/0")
    assert ledger.prefetches_of("b") == []


@pytest.mark.parametrize(("mode", "written"), [("error", False), ("lost", True)])
def test_a_reservation_and_its_orders_are_written_together(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch, mode: str, written: bool
) -> None:
    ledger.enqueue(fence, [waiting("a", inputs=INPUTS)])
    monkeypatch.setenv(ENV_FAULT, f"ledger.admit:{mode}")
    with pytest.raises(LedgerError):
        ledger.admit(fence, "a", on("n1/0"), expires_at=LATER)
    assert bool(ledger.holders(POOL)) == bool(ledger.prefetches_of("a")) == written


def test_progress_is_kept_with_when_it_began_and_ended(ledger: Ledger, fence: Fence) -> None:
    _admit(ledger, fence, "a", "n1/0")
    assert _progress(ledger, PrefetchState.FETCHING, at=11.0, done=1)
    assert _progress(ledger, PrefetchState.FETCHING, at=12.0, done=5)
    (order,) = ledger.prefetches_for("n1")
    assert (order.began_at, order.updated_at, order.ended_at) == (11.0, 12.0, None)
    assert (order.bytes_done, order.bytes_total) == (5, 10)
    assert _progress(ledger, PrefetchState.DONE, at=14.0, done=10)
    (order,) = ledger.prefetches_of("a")
    assert (order.began_at, order.ended_at, order.state) == (11.0, 14.0, PrefetchState.DONE)
    assert ledger.prefetches_for("n1") == []
    assert not _progress(ledger, PrefetchState.FETCHING, at=15.0), "what has ended stays ended"


def test_a_failure_is_kept_in_words(ledger: Ledger, fence: Fence) -> None:
    _admit(ledger, fence, "a", "n1/0")
    assert _progress(ledger, PrefetchState.FAILED, at=11.0, error="no route to s3")
    (order,) = ledger.prefetches_of("a")
    assert (order.state, order.error, order.is_open) == (PrefetchState.FAILED, "no route to s3", False)


def _undo(ledger: Ledger, fence: Fence) -> None:
    ledger.undo_admission(fence, "a", 1, why="start failed")


def _evicted_before_its_start(ledger: Ledger, fence: Fence) -> None:
    ledger.claimed(fence, "a", 1, user_retries=None)
    ledger.evict(fence, ["a"], why="drain")
    ledger.leave(fence, "a", 1, {"kind": "evicted"})


def _left(ledger: Ledger, fence: Fence) -> None:
    ledger.claimed(fence, "a", 1, user_retries=None)
    ledger.started(fence, "a", 1, 20.0)
    ledger.leave(fence, "a", 1, {"kind": "exited"})


@pytest.mark.parametrize("gives_up", [_undo, _evicted_before_its_start, _left])
def test_orders_are_withdrawn_with_the_reservation(ledger: Ledger, fence: Fence, gives_up) -> None:
    _admit(ledger, fence, "a", "n1/0", "n2/0")
    _progress(ledger, PrefetchState.DONE, at=11.0)
    gives_up(ledger, fence)
    assert [order.state for order in ledger.prefetches_of("a")] == [PrefetchState.DONE, PrefetchState.WITHDRAWN]
    assert ledger.prefetches_for("n2") == []
    assert ledger.check() == []


def test_an_agent_that_works_for_an_attempt_that_is_over_is_told_to_stop(ledger: Ledger, fence: Fence) -> None:
    _admit(ledger, fence, "a", "n1/0")
    assert _progress(ledger, PrefetchState.FETCHING, at=11.0)
    _undo(ledger, fence)
    assert not _progress(ledger, PrefetchState.FETCHING, at=12.0)
    _admit(ledger, fence, "a", "n1/0")
    assert not _progress(ledger, PrefetchState.DONE, at=13.0, attempt=1)
    assert [(o.attempt, o.state) for o in ledger.prefetches_of("a")] == [(2, PrefetchState.ORDERED)]


def test_orders_are_forgotten_with_their_gang(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    _admit(ledger, fence, "a", "n1/0")
    _left(ledger, fence)
    ledger.end(fence, "a", 1, final_state="COMPLETED")
    assert known(ledger, "a").ended_at is not None
    clock.seconds += 1000
    assert ledger.prune(fence, ended_before=clock.now(), decided_before=0.0).gangs == 1
    assert ledger.prefetches_of("a") == []


@pytest.mark.parametrize("mode", ["error", "lost"])
def test_a_report_whose_answer_fails_is_simply_repeated(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    _admit(ledger, fence, "a", "n1/0")
    monkeypatch.setenv(ENV_FAULT, f"ledger.prefetch.progress:{mode},ledger.inventory.report:{mode}")
    with pytest.raises(LedgerError):
        _progress(ledger, PrefetchState.FETCHING, at=11.0)
    with pytest.raises(LedgerError):
        ledger.report_inventory("n1", at=11.0, bandwidth_bytes_per_s=None, bundles=[])
    monkeypatch.delenv(ENV_FAULT)
    assert _progress(ledger, PrefetchState.FETCHING, at=12.0)
    ledger.report_inventory("n1", at=12.0, bandwidth_bytes_per_s=None, bundles=[])
    assert [order.began_at for order in ledger.prefetches_of("a")] == [11.0 if mode == "lost" else 12.0]
    assert set(ledger.inventories()) == {"n1"}


def test_what_a_node_measured_is_kept(ledger: Ledger, fence: Fence) -> None:
    _admit(ledger, fence, "a", "n1/0")
    assert ledger.prefetches_of("a")[0].figures == {}
    assert _progress(ledger, PrefetchState.DONE, at=11.0, figures={"fetch": 2.5, "verify": 0.5})
    assert ledger.prefetches_of("a")[0].figures == {"fetch": 2.5, "verify": 0.5}
