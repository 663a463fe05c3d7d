"""A Scheduled write must not revive a run that somebody ended in between."""

from dsec_workers.lifecycle.scheduled import ended_since_scheduled, overwritten
from dsec_workers.prefect_api.results import KEEPS_WAITING
from tests.workers.lifecycle.records import state

BASE = state("SCHEDULED", at=10.0)
OURS = state("SCHEDULED", "AwaitingGPUs", at=12.0)


def test_nothing_is_lost_when_only_ours_follows() -> None:
    assert overwritten([BASE, OURS], base=BASE, ours=OURS) is None


def test_a_cancel_between_what_we_knew_and_what_we_wrote_is_found() -> None:
    cancelled = state("CANCELLED", at=11.0)
    assert overwritten([BASE, cancelled, OURS], base=BASE, ours=OURS) is cancelled


def test_a_cancel_that_was_committed_before_ours_but_bears_a_later_time_is_found() -> None:
    """The server takes the timestamp before it waits for the lock."""
    cancelling = state("CANCELLING", at=12.5)
    assert overwritten([BASE, OURS, cancelling], base=BASE, ours=OURS) is cancelling


def test_an_end_from_before_what_we_knew_is_history() -> None:
    """Retry in the UI: the run completed, and was sent back."""
    assert overwritten([state("COMPLETED", at=5.0), BASE, OURS], base=BASE, ours=OURS) is None


def test_of_several_ends_the_newest_counts() -> None:
    cancelling, cancelled = state("CANCELLING", at=10.5), state("CANCELLED", at=11.0)
    assert overwritten([BASE, cancelling, cancelled, OURS], base=BASE, ours=OURS) is cancelled


def test_an_end_that_a_claim_replaced_is_found_whichever_timestamp_is_the_later() -> None:
    """The server lets Pending replace Completed."""
    completed, pending = state("COMPLETED", at=11.0), state("PENDING", at=11.1)
    assert ended_since_scheduled([BASE, completed, pending]) is completed
    assert ended_since_scheduled([BASE, state("PENDING", at=10.9), completed]) is completed


def test_an_end_before_the_run_was_scheduled_again_is_history() -> None:
    again = state("SCHEDULED", "AwaitingRetry", at=12.0)
    assert ended_since_scheduled([BASE, state("FAILED", at=11.0), again, state("PENDING", at=13.0)]) is None


def test_a_reason_written_over_a_cancel_by_a_worker_that_died_then_does_not_revive_the_run() -> None:
    cancelled = state("CANCELLED", at=11.0)
    reason = state("SCHEDULED", "AwaitingGPUs", at=12.0, transition_id=KEEPS_WAITING + "-0000-4000-8000-000000000000")
    pending = state("PENDING", at=13.0)
    assert ended_since_scheduled([BASE, cancelled, reason, pending]) is cancelled
    by_a_user = state("SCHEDULED", "AwaitingRetry", at=12.0, transition_id="01234567-0000-4000-8000-000000000000")
    assert ended_since_scheduled([BASE, cancelled, by_a_user, reason, pending]) is None
