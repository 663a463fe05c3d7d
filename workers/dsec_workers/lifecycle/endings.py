"""What becomes of a run whose processes are gone.

`judge` compares how the gang left with what Prefect believes, and says the one thing to do; `settle` does it. The
gang stays `leaving` in the ledger until Prefect has been told, so an outage of any length only delays this. What has
finished is never run again: a final state that the engine wrote stays, whatever we had in mind for the gang.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.exits import meaning
from dsec_blocks.model.gangs import Gang, Placement
from dsec_blocks.model.names import STATE_WAITING_AGAIN
from dsec_blocks.model.units import format_duration
from dsec_workers.clusters.protocol import EXIT_OVERTAKEN, Gone
from dsec_workers.lifecycle.claims import START_BACKOFF_SECONDS, put_back
from dsec_workers.lifecycle.scheduled import write_scheduled
from dsec_workers.lifecycle.term import Term, key_of, waiting_name
from dsec_workers.prefect_api import ApiUnavailable, Proposal, Run

RESTART_BACKOFF_SECONDS = 1.0
CLAIMS_FIRST_SECONDS = 1.0
MOST_NODES_NAMED = 4
"""In the message of a run that goes on elsewhere at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Prefect's state stands; the gang ends."""

    final_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Write this final state; the gang ends. `force` overrides the server's rules (retries left, a crash of ours)."""

    proposal: Proposal
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """The run waits again. `written` is true when Prefect says so already."""

    message: str
    evicted: bool = False
    infrastructure: bool = False
    backoff_seconds: float = 0.0
    written: bool = False


Verdict = Keep | Finish | Requeue


def outcome_of(gone: Gone, *, gang: Gang, reason: str | None, stopped_for: str | None) -> dict[str, Any]:
    """The ledger's record of how an attempt left."""
    kind = "exited"
    if gone.start_failure is not None:
        kind = "failed-start"
    elif gone.lost_member is not None:
        kind = "lost"
    if stopped_for is not None:
        kind = stopped_for
    elif gone.notice in ("evict", "drain"):
        kind = "evicted"
    elif gone.notice == "cancel":
        kind = "cancelled"
    return {
        "kind": kind,
        "at": gone.at,
        "flow_exit": gone.flow_exit,
        "member_exits": {str(member): code for member, code in gone.member_exits.items()},
        "lost_member": gone.lost_member,
        "last_commit_step": gone.last_commit_step if gone.last_commit_step is not None else gang.last_step,
        "start_failure": gone.start_failure,
        "reason": reason if reason is not None else gone.reason,
    }


def judge(gang: Gang, run: Run | None, *, restarts_allowed: int) -> Verdict:
    """What to do about a gang that has left, given its run as it is now. Pure."""
    if run is None:
        return Keep(final_state="Deleted")
    state, kind = run.state, gang.outcome.get("kind", "exited")
    if state.type == "CANCELLING":
        return Finish(proposal=Proposal(type="CANCELLED", name="Cancelled", message="Cancelled; its gang has stopped."))
    if state.type in ("COMPLETED", "FAILED", "CANCELLED"):
        return Keep(final_state=state.name)
    if state.suspended:
        return Keep(final_state="Suspended")
    if state.type == "CRASHED" and not _our_doing(gang, kind, state.timestamp):
        return Keep(final_state=state.name)
    if kind == "cancelled":
        cancelled = Proposal(type="CANCELLED", name="Cancelled", message="Cancelled; its gang has stopped.")
        return Finish(proposal=cancelled, force=True)
    code = gang.outcome.get("flow_exit")
    if kind == "exited" and state.type == "PENDING" and code is not None and code > 0 and code != EXIT_OVERTAKEN:
        # It said why in its log and would say it again: a flow that cannot be loaded, a @gang that does not match.
        message = f"The flow could not be started (exit code {code}); its log says why."
        return Finish(proposal=Proposal(type="CRASHED", name="Crashed", message=message))
    if kind == "timed-out":
        longest = format_duration(gang.request.max_runtime_seconds or 0.0)
        message = f"Stopped after its longest run time, {longest} (max_runtime)."
        return Finish(proposal=Proposal(type="FAILED", name="TimedOut", message=message), force=True)
    if state.type == "SCHEDULED" and not _left_behind(run):
        requeue = _requeue(gang, run, restarts_allowed)
        if isinstance(requeue, Requeue) and _says(state.message, requeue.message):
            return Requeue(
                message=requeue.message,
                evicted=requeue.evicted,
                infrastructure=requeue.infrastructure,
                backoff_seconds=requeue.backoff_seconds,
                written=True,
            )
        return Keep(final_state="Rescheduled")
    return _requeue(gang, run, restarts_allowed)


def _says(written: str, message: str) -> bool:
    """Whether that is what we wrote; the place where it was to go on may have been given up since."""
    return written == message or written.startswith(f"{message} on ")


def why_back(gang: Gang) -> str | None:
    """What sent a waiting gang back into the line and where it goes on; None if it waits for its first start. Pure."""
    kind = gang.outcome.get("kind")
    if kind == "evicted":
        return _resume_message(gang.outcome.get("reason") or "Preempted", gang.outcome)
    if kind in ("lost", "exited"):
        return _resume_message(_what_happened(gang.outcome), gang.outcome)
    return None


async def settle(term: Term, gang: Gang) -> None:
    """Tell Prefect how the gang ended, once, and let the ledger follow."""
    run = await _read(term, gang)
    if run is not None and run.state.type == "PENDING" and gang.outcome.get("flow_exit") == EXIT_OVERTAKEN:
        await put_back(term, gang.run_id)
        run = await term.api.run(gang.run_id)
    verdict = judge(gang, run, restarts_allowed=term.settings.infrastructure_restarts)
    if isinstance(verdict, Requeue) and run is not None:
        if not verdict.written:
            name = STATE_WAITING_AGAIN if gang.outcome.get("kind") != "failed-start" else waiting_name(run)
            proposal = Proposal(type="SCHEDULED", name=name, message=verdict.message, scheduled_time=gang.eligible_at)
            if run.infrastructure_pid is not None:
                await term.api.forget_infrastructure(gang.run_id)
            state = await write_scheduled(term.api, term.api.requeue, gang.run_id, proposal, base=run.state)
            if state is None:
                # Somebody ended it in between; judged anew at the next tick.
                term.ring()
                return
        not_before = term.clock.now() + verdict.backoff_seconds if verdict.backoff_seconds else None
        attempt, infrastructure = (gang.run_id, gang.attempt), verdict.infrastructure
        # Where it is to go on at once, it is reserved now, and claimed like any other.
        resume_by = term.steady() + term.settings.reservation_seconds if verdict.evicted else None
        await term.mark(term.ledger.requeue_all, *attempt, verdict.evicted, infrastructure, not_before, resume_by)
        if gang.resumes_at is not None:
            term.ring()
        outcome, detail = "requeued", verdict.message
        term.runs.pop(gang.run_id, None)
        term.told.pop(gang.run_id, None)
    else:
        if isinstance(verdict, Finish):
            transition = await term.api.finish(gang.run_id, verdict.proposal, force=verdict.force)
            if not transition.accepted:
                raise ApiUnavailable(f"{verdict.proposal.name} was not accepted: {transition.detail}")
            outcome = verdict.proposal.name
        else:
            assert isinstance(verdict, Keep)
            outcome = verdict.final_state
        detail = str(gang.outcome.get("kind"))
        await term.mark(term.ledger.end_all, gang.run_id, gang.attempt, outcome)
        term.forget(gang.run_id)
    term.forget_attempt(key_of(gang))
    await term.cluster.forget(key_of(gang))
    term.decide("end", outcome, run_id=gang.run_id, why=detail, detail=gang.outcome)
    if outcome != "requeued":
        term.ended[gang.run_id] = 0


async def _read(term: Term, gang: Gang) -> Run | None:
    """The run as it is now. While claims need the server, runs whose engine has said their end are read together."""
    has_said_it = gang.outcome.get("kind") == "exited" and gang.outcome.get("flow_exit") == 0
    if has_said_it and term.errands.lately("claim", CLAIMS_FIRST_SECONDS):
        return await term.api.run_at_leisure(gang.run_id)
    return await term.api.run(gang.run_id)


def _requeue(gang: Gang, run: Run, restarts_allowed: int) -> Verdict:
    outcome, kind = gang.outcome, gang.outcome.get("kind", "exited")
    if kind == "evicted":
        message = _resume_message(outcome.get("reason") or "Preempted", outcome)
        if gang.resumes_at is not None:
            message += f" on {_nodes(gang.resumes_at)}"
        return Requeue(message=message, evicted=True)
    what = _what_happened(outcome)
    used = gang.infrastructure_restarts
    if used >= restarts_allowed:
        if kind == "failed-start":
            message = f"{what}; given up after {used + 1} attempts."
        else:
            message = f"{what}; all {restarts_allowed} restarts are used up."
        # Not forced while the run is live: the server then applies its own rules.
        return Finish(proposal=Proposal(type="CRASHED", name="Crashed", message=message))
    message = f"{what}; restart {used + 1} of {restarts_allowed}"
    if kind == "failed-start":
        return Requeue(message=message, infrastructure=True, backoff_seconds=START_BACKOFF_SECONDS * 2**used)
    return Requeue(
        message=_resume_message(message, outcome),
        infrastructure=True,
        backoff_seconds=RESTART_BACKOFF_SECONDS * 2**used,
    )


def _resume_message(message: str, outcome: Mapping[str, Any]) -> str:
    step = outcome.get("last_commit_step")
    return f"{message}; resumes from step {step}" if step is not None else f"{message}; starts over"


def _nodes(placement: Placement) -> str:
    names = [member.node for member in placement.members]
    return ", ".join(names) if len(names) <= MOST_NODES_NAMED else f"{len(names)} nodes"


def _what_happened(outcome: Mapping[str, Any]) -> str:
    if outcome.get("start_failure"):
        return f"Start failed: {outcome['start_failure']}"
    lost = outcome.get("lost_member")
    if lost is not None:
        code = outcome.get("member_exits", {}).get(str(lost))
        return f"Member {lost} died{_exit(code)} and its gang was stopped"
    if outcome.get("kind") == "lost":
        return "Its processes disappeared"
    return f"The flow's process ended{_exit(outcome.get('flow_exit'))} without reporting an end"


def _exit(code: int | None) -> str:
    if code is None:
        return ""
    told, means = f"signal {-code}" if code < 0 else f"exit code {code}", meaning(code)
    return f" ({told}{means and f': {means}'})"


def _our_doing(gang: Gang, kind: str, at: float) -> bool:
    """Whether a Crashed state is the engine's answer to our own stopping of the gang."""
    return kind in ("evicted", "cancelled", "timed-out", "lost", "failed-start") and (
        gang.launched_at is None or at >= gang.launched_at
    )


def _left_behind(run: Run) -> bool:
    """Whether the run waits for a retry inside a process that no longer exists."""
    return run.policy.get("retry_type") == "in_process"
