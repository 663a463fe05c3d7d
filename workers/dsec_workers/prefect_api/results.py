"""What the Prefect API answers, as far as the lifecycle needs it.

A poll can return thousands of runs, so these are light records read from the JSON; the `raw` run is kept for the
few places (claim, environment) that need Prefect's own model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dsec_blocks.model.errors import DsecError

TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
KEEPS_WAITING = "d5ec0001"
"""How the transition id of a Scheduled state begins that only rewrites a reason, or takes a claim back."""


class ApiUnavailable(DsecError):
    """The Prefect API did not answer, or answered that it could not; whether a write was applied is unknown."""


class ApiRefused(DsecError):
    """The Prefect API refused a request as wrong (4xx); trying again does not help."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One state of a run; times are seconds since the epoch."""

    id: str
    type: str
    name: str
    message: str
    timestamp: float
    transition_id: str | None
    scheduled_time: float | None
    pause_reschedule: bool
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def terminal(self) -> bool:
        """Whether the run is over as far as Prefect knows."""
        return self.type in TERMINAL

    @property
    def keeps_waiting(self) -> bool:
        """Whether a worker of ours wrote it for a run that waited anyway: it makes nothing Scheduled again."""
        return (self.transition_id or "").startswith(KEEPS_WAITING)

    @property
    def suspended(self) -> bool:
        """Paused in the way that gives the infrastructure back."""
        return self.type == "PAUSED" and self.pause_reschedule

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "RunState":
        """The state in an API answer."""
        details = state.get("state_details") or {}
        return cls(
            id=state["id"],
            type=state["type"],
            name=state.get("name") or "",
            message=state.get("message") or "",
            timestamp=_seconds(state.get("timestamp")) or 0.0,
            transition_id=details.get("transition_id"),
            scheduled_time=_seconds(details.get("scheduled_time")),
            pause_reschedule=bool(details.get("pause_reschedule")),
            raw=state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A flow run. `due` is its scheduled start time while it is Scheduled."""

    id: str
    name: str
    state: RunState
    due: float | None
    queue: str
    deployment_id: str | None
    job_variables: Mapping[str, Any]
    policy: Mapping[str, Any]
    infrastructure_pid: str | None
    run_count: int
    parent_task_run_id: str | None
    has_started: bool
    """Whether it has a start time: of its first start, or of an end before any start."""
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, in order."""
        return tuple(sorted(self.raw.get("tags") or ()))

    @property
    def retries(self) -> int | None:
        """The retries in its policy; None when the flow's own decide at start."""
        return self.policy.get("retries")

    @classmethod
    def from_json(cls, run: Mapping[str, Any]) -> "Run":
        """The run in an API answer."""
        state = run.get("state") or {"id": "", "type": "PENDING", "name": "none"}
        return cls(
            id=run["id"],
            name=run.get("name") or run["id"],
            state=RunState.from_json(state),
            due=_seconds(run.get("next_scheduled_start_time")),
            queue=run.get("work_queue_name") or "default",
            deployment_id=run.get("deployment_id"),
            job_variables=run.get("job_variables") or {},
            policy=run.get("empirical_policy") or {},
            infrastructure_pid=run.get("infrastructure_pid"),
            run_count=run.get("run_count") or 0,
            parent_task_run_id=run.get("parent_task_run_id"),
            has_started=run.get("start_time") is not None,
            raw=run,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A work queue of the pool."""

    name: str
    paused: bool
    limit: int | None = None
    """Runs at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a run inherits from its deployment; `updated` tells when a cached copy is stale."""

    id: str
    updated: str
    job_variables: Mapping[str, Any]
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A state to set. `scheduled_time` (seconds) belongs to SCHEDULED only and is always given there."""

    type: str
    name: str
    message: str = ""
    scheduled_time: float | None = None

    def to_json(self, transition_id: str) -> dict[str, Any]:
        """The request body's state."""
        details: dict[str, Any] = {"transition_id": transition_id}
        if self.scheduled_time is not None:
            details["scheduled_time"] = iso(self.scheduled_time)
        return {"type": self.type, "name": self.name, "message": self.message, "state_details": details}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What became of a proposal. `state` is the run's state afterwards as the server answered, if it did."""

    accepted: bool
    state: RunState | None
    detail: str = ""


def iso(seconds: float) -> str:
    """Seconds since the epoch as the API writes times, to the microsecond."""
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
