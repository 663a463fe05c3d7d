"""Stands in for Prefect's API where only plan, ledger and adapter are measured: it says yes to everything, at once.

Every run that was told to it is Scheduled until it is claimed, claims are always accepted, states are kept in memory.
There is no server, no request and no JSON; what a claim costs at a real server is not in any figure of an engine that
is run on this. Whatever the worker's lifecycle calls beyond these methods fails loudly.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from dsec_workers.prefect_api import Deployment, Proposal, Queue, Run, RunState, Transition


class PromptPrefect:
    """As much of `PrefectApi` as a gang's life from reservation to requeue asks for."""

    def __init__(self) -> None:
        self.known: dict[str, Run] = {}

    def schedule(self, run_id: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """A run that waits; labels and annotations are its pods'."""
        pod = {"labels": dict(labels), "annotations": dict(annotations)}
        self.known[run_id] = Run(
            id=run_id, name=run_id, state=_state("SCHEDULED", "Scheduled"), due=time.time(), queue="default",
            deployment_id=None, job_variables=pod, policy={}, infrastructure_pid=None, run_count=0,
            parent_task_run_id=None, has_started=False, raw={},
        )  # fmt: skip

    def complete(self, run_id: str) -> None:
        """The run's pods have ended well: what its own engine would have written."""
        self._now(run_id, _state("COMPLETED", "Completed"))

    # What is read

    async def run(self, run_id: str) -> Run | None:
        """One run."""
        return self.known.get(run_id)

    async def runs(self, run_ids: Sequence[str], *, types: Collection[str] = ()) -> dict[str, Run]:
        """Those that are known, in one of the states."""
        found = {run_id: self.known[run_id] for run_id in run_ids if run_id in self.known}
        return {run_id: run for run_id, run in found.items() if not types or run.state.type in types}

    async def how_many(self, run_ids: Sequence[str]) -> int:
        """All of them exist."""
        return len(run_ids)

    async def history(self, run_id: str) -> list[RunState]:
        """Only the present state is kept."""
        return [self.known[run_id].state]

    async def in_states(self, pool: str, types: Sequence[str]) -> list[Run]:
        """Nobody cancels."""
        return []

    async def scheduled(self, pool: str, **_: Any) -> list[Run]:
        """Runs are put into the ledger directly; there is nothing to take in."""
        return []

    async def pool(self, pool: str) -> Mapping[str, Any]:
        """Not paused."""
        return {}

    async def queues(self, pool: str) -> list[Queue]:
        """One."""
        return [Queue(name="default", paused=False)]

    async def deployments(self, ids: Sequence[str]) -> dict[str, Deployment]:
        """None."""
        return {}

    async def mark_ready(self, pool: str) -> None:
        """Nothing to do."""

    # What is written

    async def claim_pending(self, run_id: str, message: str) -> Transition:
        """Always accepted."""
        return self._now(run_id, _state("PENDING", "Pending", message))

    async def requeue(self, run_id: str, proposal: Proposal) -> Transition:
        """Waits again."""
        return self._now(run_id, _state(proposal.type, proposal.name, proposal.message))

    tell_reason = undo_claim = requeue

    async def finish(self, run_id: str, proposal: Proposal, *, force: bool = False) -> Transition:
        """A final state."""
        return await self.requeue(run_id, proposal)

    async def claim_policy(self, run_id: str, **_: Any) -> None:
        """Not kept."""

    async def forget_infrastructure(self, run_id: str) -> None:
        """Not kept."""

    async def logs(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Not kept."""

    async def artifact(self, **_: Any) -> None:
        """Not kept."""

    def _now(self, run_id: str, state: RunState) -> Transition:
        self.known[run_id] = replace(self.known[run_id], state=state)
        return Transition(accepted=True, state=state)


def _state(kind: str, name: str, message: str = "") -> RunState:
    return RunState(
        id=uuid4().hex, type=kind, name=name, message=message, timestamp=time.time(), transition_id=uuid4().hex,
        scheduled_time=None, pause_reschedule=False, raw={},
    )  # fmt: skip
