"""Runs, states and gangs as a test writes them down."""

from typing import Any

from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_workers.prefect_api import Run, RunState

LAUNCHED = 1000.0


def state(
    kind: str, name: str | None = None, *, at: float = 2000.0, message: str = "", id: str = "", **details: Any
) -> RunState:
    name = name or kind.capitalize()
    return RunState(
        id=id or f"{name}-{at}", type=kind, name=name, message=message, timestamp=at,
        transition_id=details.get("transition_id"), scheduled_time=details.get("scheduled_time"),
        pause_reschedule=details.get("pause_reschedule", False), raw={},
    )  # fmt: skip


def run(present: RunState, *, policy: dict[str, Any] | None = None, run_count: int = 1) -> Run:
    return Run(
        id="run", name="run", state=present, due=None, queue="default", deployment_id=None, job_variables={},
        policy=policy or {}, infrastructure_pid=None, run_count=run_count, parent_task_run_id=None,
        has_started=run_count > 0, raw={},
    )  # fmt: skip


def gang(present: GangState = GangState.LEAVING, **fields: Any) -> Gang:
    return Gang(
        **{
            "run_id": "run", "name": "run", "pool": "pool", "team": "default",
            "request": GangRequest(devices_per_node=1), "state": present, "submitted_at": 0.0, "eligible_at": 0.0,
            "attempt": 1, "launched_at": LAUNCHED, **fields,
        }  # type: ignore[arg-type]
    )  # fmt: skip
