"""What becomes of a run whose processes are gone: one row a case, no server."""

from typing import Any

import pytest

from dsec_workers.clusters.protocol import EXIT_OVERTAKEN, GangKey, Gone
from dsec_workers.lifecycle.endings import Finish, Keep, Requeue, judge, outcome_of
from dsec_workers.prefect_api import RunState
from tests.workers.lifecycle.records import LAUNCHED, gang, run, state

EVICTED = {"kind": "evicted", "reason": "Preempted by big (team a, priority 9)", "last_commit_step": 1200}
EXITED = {"kind": "exited", "flow_exit": 1}
LOST = {"kind": "lost", "lost_member": 1, "member_exits": {"1": -9}}


def _decided(outcome: dict[str, Any], present: RunState | None, **fields: Any) -> tuple[str, str]:
    policy = fields.pop("policy", {})
    judged = judge(
        gang(outcome=outcome, **fields), None if present is None else run(present, policy=policy), restarts_allowed=3
    )
    match judged:
        case Keep():
            return "keep", judged.final_state
        case Finish():
            return f"finish{' by force' if judged.force else ''}", judged.proposal.name
        case Requeue():
            why = "evicted" if judged.evicted else "infrastructure"
            return f"requeue{' (written)' if judged.written else ''}", why


@pytest.mark.parametrize(
    ("case", "outcome", "present", "decided"),
    [
        ("a completed run stays completed", EXITED, state("COMPLETED"), ("keep", "Completed")),
        ("a failed run stays failed", EXITED, state("FAILED"), ("keep", "Failed")),
        ("a run that completed within its grace stays completed", EVICTED, state("COMPLETED"), ("keep", "Completed")),
        ("an evicted run that was running waits again", EVICTED, state("RUNNING"), ("requeue", "evicted")),
        ("an evicted run that had not begun waits again", EVICTED, state("PENDING"), ("requeue", "evicted")),
        ("crashed by our own eviction is no crash", EVICTED, state("CRASHED"), ("requeue", "evicted")),
        ("a crash before our launch is not ours", EVICTED, state("CRASHED", at=LAUNCHED - 1), ("keep", "Crashed")),
        ("a crash of its own stays a crash", EXITED, state("CRASHED"), ("keep", "Crashed")),
        ("cancelling wins over an eviction", EVICTED, state("CANCELLING"), ("finish", "Cancelled")),
        ("cancelled stays cancelled", EVICTED, state("CANCELLED"), ("keep", "Cancelled")),
        ("a suspended run keeps its state", EXITED, state("PAUSED", "Suspended", pause_reschedule=True),
         ("keep", "Suspended")),
        ("a paused run whose gang died is restarted", LOST, state("PAUSED"), ("requeue", "infrastructure")),
        ("a dead member restarts the run", LOST, state("RUNNING"), ("requeue", "infrastructure")),
        ("crashed because a member died restarts the run", LOST, state("CRASHED"), ("requeue", "infrastructure")),
        ("a killed flow process restarts the run", {"kind": "exited", "flow_exit": -9}, state("RUNNING"),
         ("requeue", "infrastructure")),
        ("a flow that cannot be loaded is not tried again", EXITED, state("PENDING"), ("finish", "Crashed")),
        ("a run that its process did not find as it was claimed is claimed again",
         {"kind": "exited", "flow_exit": EXIT_OVERTAKEN}, state("PENDING"), ("requeue", "infrastructure")),
        ("a run that was completed while it started stays completed",
         {"kind": "exited", "flow_exit": EXIT_OVERTAKEN}, state("COMPLETED"), ("keep", "Completed")),
        ("a start that failed is tried again", {"kind": "failed-start", "start_failure": "no lock"}, state("PENDING"),
         ("requeue", "infrastructure")),
        ("a run over its limit has timed out, whatever retries it has", {"kind": "timed-out"}, state("RUNNING"),
         ("finish by force", "TimedOut")),
        ("a crash of ours while cancelling is a cancellation", {"kind": "cancelled"}, state("CRASHED"),
         ("finish by force", "Cancelled")),
        ("a run that others called crashed and whose gang was stopped for it stays crashed", {"kind": "over"},
         state("CRASHED"), ("keep", "Crashed")),
        ("a run that a user sent back is the intake's", EXITED, state("SCHEDULED", "AwaitingRetry"),
         ("keep", "Rescheduled")),
        ("a deleted run ends", EXITED, None, ("keep", "Deleted")),
    ],
)  # fmt: skip
def test_the_verdict(case: str, outcome: dict[str, Any], present: RunState | None, decided: tuple[str, str]) -> None:
    assert _decided(outcome, present) == decided, case


def test_a_run_that_waited_for_a_retry_in_a_dead_process_is_requeued_22847() -> None:
    """Issue 22847: a SIGTERM race strands the run in AwaitingRetry, in_process, where no poll returns it."""
    present = state("SCHEDULED", "AwaitingRetry")
    assert _decided(LOST, present, policy={"retry_type": "in_process"}) == ("requeue", "infrastructure")


def test_a_requeue_that_was_already_written_is_not_written_again() -> None:
    first = judge(gang(outcome=EVICTED), run(state("RUNNING")), restarts_allowed=3)
    assert isinstance(first, Requeue)
    assert first.message == "Preempted by big (team a, priority 9); resumes from step 1200"
    assert _decided(EVICTED, state("SCHEDULED", "AwaitingRetry", message=first.message)) == (
        "requeue (written)",
        "evicted",
    )


def test_when_the_restarts_are_used_up_the_run_is_crashed_with_what_happened() -> None:
    judged = judge(gang(outcome=LOST, infrastructure_restarts=3), run(state("RUNNING")), restarts_allowed=3)
    assert isinstance(judged, Finish)
    assert judged.proposal.message == ("Member 1 died (signal 9) and its gang was stopped; all 3 restarts are used up.")


def test_a_member_that_could_not_read_its_weights_is_told_so() -> None:
    outcome = {**LOST, "member_exits": {"1": -7}}
    judged = judge(gang(outcome=outcome, infrastructure_restarts=3), run(state("RUNNING")), restarts_allowed=3)
    assert isinstance(judged, Finish)
    assert judged.proposal.message.startswith("Member 1 died (signal 7: weights unreadable: a page of a mapped file")


@pytest.mark.parametrize(
    ("gone", "stopped_for", "kind"),
    [
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=0), None, "exited"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=0, notice="evict"), None, "evicted"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=0, notice="drain"), None, "evicted"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=-9, lost_member=1), None, "lost"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=None, start_failure="x"), None, "failed-start"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=-15), "cancelled", "cancelled"),
        (Gone(key=GangKey("run", 1), at=1.0, flow_exit=-15), "timed-out", "timed-out"),
    ],
)
def test_the_kind_of_an_outcome(gone: Gone, stopped_for: str | None, kind: str) -> None:
    assert outcome_of(gone, gang=gang(last_step=7), reason=None, stopped_for=stopped_for)["kind"] == kind
