"""The door through which every Prefect API request of the worker leaves.

Writes carry a literal fault-point name, and a `transition_id` of our own: the server refuses the same transition a
second time, which makes a state write whose answer was lost safe to repeat. Prefect's client would retry for a minute
by itself and stop the loop for that long, so its retries are off here (`no_client_retries`) and this module's policy
is the only one.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import anyio
import httpx
from prefect.client.orchestration import PrefectClient
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dsec_blocks.gateways.faults import InjectedError, fault_point
from dsec_workers.prefect_api.reading_together import ReadingTogether
from dsec_workers.prefect_api.results import (
    KEEPS_WAITING,
    ApiRefused,
    ApiUnavailable,
    Deployment,
    Proposal,
    Queue,
    Run,
    RunState,
    Transition,
    iso,
)

PAGE = 200
"""The most that one answer of the server holds."""
REQUEST_SECONDS = 20.0
ATTEMPTS = 3
STATE_WRITES_AT_ONCE = 4
"""The server keeps five connections to PostgreSQL; with more state writes at a time it opens and closes one for each,
which doubles what a write costs it. One thread carries all of them out, so more are not faster on SQLite either."""
TOGETHER_SECONDS = 0.5
"""How long the read of a run that nobody waits for may wait for others."""


@contextmanager
def no_client_retries() -> Iterator[None]:
    """Inside, Prefect's client tries once; our policy decides what is tried again."""
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        yield


def _id_of_end(run_id: str, proposal: Proposal) -> str:
    """The same for every worker that writes this end of the run.

    A leader that was stopped in the moment of writing writes when it goes on, whatever its successor has written by
    then. The server refuses a transition that is the run's last one already; a run that was tried again since has had
    others.
    """
    return str(uuid5(NAMESPACE_OID, f"{run_id}/{proposal.type}/{proposal.name}"))


class PrefectApi:
    """Typed requests on one `PrefectClient`. Raises `ApiUnavailable` and `ApiRefused`, nothing else."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client
        self._state_writes = anyio.Semaphore(STATE_WRITES_AT_ONCE)
        self._together = ReadingTogether(self.runs, seconds=TOGETHER_SECONDS)

    # Reads

    async def queues(self, pool: str) -> list[Queue]:
        """The pool's work queues."""
        found: list[Queue] = []
        while True:
            page = await self._read(
                "POST", "/work_pools/{pool}/queues/filter", {"pool": pool}, {"limit": PAGE, "offset": len(found)}
            )
            found += [
                Queue(name=q["name"], paused=bool(q.get("is_paused")), limit=q.get("concurrency_limit")) for q in page
            ]
            if len(page) < PAGE:
                return found

    async def pool(self, pool: str) -> Mapping[str, Any]:
        """The work pool: `is_paused`, `concurrency_limit`, `base_job_template`."""
        answer: Mapping[str, Any] = await self._read("GET", "/work_pools/{pool}", {"pool": pool})
        return answer

    async def mark_ready(self, pool: str) -> None:
        """Poll as a stock worker does: the only request that marks queues and deployments READY."""
        await self._read("POST", "/work_pools/{pool}/get_scheduled_flow_runs", {"pool": pool}, {"limit": 1})

    async def scheduled(
        self,
        pool: str,
        *,
        before: float,
        after: float | None = None,
        queue: str | None = None,
        known: Collection[str] = (),
        offset: int = 0,
    ) -> list[Run]:
        """One page (200) of the pool's Scheduled runs due from `after` to `before`, soonest first, but the `known`."""
        due: dict[str, str] = {"before_": iso(before)}
        if after is not None:
            due["after_"] = iso(after)
        criteria: dict[str, Any] = {
            "work_pools": {"name": {"any_": [pool]}},
            "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}, "next_scheduled_start_time": due},
            "sort": "NEXT_SCHEDULED_START_TIME_ASC",
            "limit": PAGE,
            "offset": offset,
        }
        if known:
            criteria["flow_runs"]["id"] = {"not_any_": sorted(known)}
        if queue is not None:
            criteria["work_pool_queues"] = {"name": {"any_": [queue]}}
        return [Run.from_json(r) for r in await self._read("POST", "/flow_runs/filter", {}, criteria)]

    async def in_states(self, pool: str, types: Sequence[str]) -> list[Run]:
        """Runs of the pool in one of the state types (at most a page)."""
        criteria = {
            "work_pools": {"name": {"any_": [pool]}},
            "flow_runs": {"state": {"type": {"any_": list(types)}}},
            "limit": PAGE,
        }
        return [Run.from_json(r) for r in await self._read("POST", "/flow_runs/filter", {}, criteria)]

    async def runs(self, run_ids: Sequence[str], *, types: Collection[str] = ()) -> dict[str, Run]:
        """Those of `run_ids` that exist; only those in a state of one of the `types`, if any are given."""
        found: dict[str, Run] = {}
        for start in range(0, len(run_ids), PAGE):
            named: dict[str, Any] = {"id": {"any_": list(run_ids[start : start + PAGE])}}
            if types:
                named["state"] = {"type": {"any_": sorted(types)}}
            criteria = {"flow_runs": named, "limit": PAGE}
            for raw in await self._read("POST", "/flow_runs/filter", {}, criteria):
                found[raw["id"]] = Run.from_json(raw)
        return found

    async def how_many(self, run_ids: Sequence[str]) -> int:
        """How many of `run_ids` exist: a tenth of the price of reading them."""
        count: int = await self._read("POST", "/flow_runs/count", {}, {"flow_runs": {"id": {"any_": list(run_ids)}}})
        return count

    async def run(self, run_id: str) -> Run | None:
        """One run; None when it was deleted."""
        try:
            return Run.from_json(await self._read("GET", "/flow_runs/{id}", {"id": run_id}))
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    async def run_at_leisure(self, run_id: str) -> Run | None:
        """As `run`, a moment later and in one request with others."""
        return await self._together.one(run_id)

    async def history(self, run_id: str) -> list[RunState]:
        """All states of the run, oldest first by the server's timestamps."""
        answer = await self._read("GET", "/flow_run_states/", {}, params={"flow_run_id": run_id})
        return [RunState.from_json(state) for state in answer]

    async def deployments(self, ids: Sequence[str]) -> dict[str, Deployment]:
        """Those of the deployments that exist."""
        found: dict[str, Deployment] = {}
        for start in range(0, len(ids), PAGE):
            criteria = {"deployments": {"id": {"any_": list(ids[start : start + PAGE])}}, "limit": PAGE}
            for raw in await self._read("POST", "/deployments/filter", {}, criteria):
                found[raw["id"]] = Deployment(
                    id=raw["id"],
                    updated=raw.get("updated") or "",
                    job_variables=raw.get("job_variables") or {},
                    raw=raw,
                )
        return found

    async def default_storage(self) -> Mapping[str, Any] | None:
        """The server's default result storage, as it says it; None when it knows of no such thing."""
        try:
            answer: Mapping[str, Any] = await self._read("GET", "/admin/storage", {})
        except ApiRefused:
            return None
        return answer

    async def parent_run_id(self, task_run_id: str) -> str | None:
        """The flow run that the task run belongs to."""
        try:
            answer = await self._read("GET", "/task_runs/{id}", {"id": task_run_id})
        except ApiRefused:
            return None
        parent: str | None = answer.get("flow_run_id")
        return parent

    async def artifacts(self, *, key: str, run_id: str) -> list[Any]:
        """The data of the artifacts of this key that are on the run's page."""
        criteria = {"artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [run_id]}}, "limit": PAGE}
        return [artifact["data"] for artifact in await self._read("POST", "/artifacts/filter", {}, criteria)]

    # Writes

    async def claim_pending(self, run_id: str, message: str) -> Transition:
        """First half of the claim: Scheduled → Pending."""
        proposal = Proposal(type="PENDING", name="Pending", message=message)
        return await self._set_state(run_id, proposal, at="prefect.claim.pending")

    async def claim_policy(self, run_id: str, *, infrastructure_pid: str, policy: Mapping[str, Any]) -> None:
        """Second half of a claim that changes the policy: all of it (a PATCH replaces it whole), and where it runs."""
        body = {"infrastructure_pid": infrastructure_pid, "empirical_policy": dict(policy)}
        await self._patch(run_id, body, at="prefect.claim.policy")

    async def undo_claim(self, run_id: str, proposal: Proposal) -> Transition:
        """Give a claimed run back to the queue."""
        return await self._set_state(run_id, proposal, at="prefect.claim.undo", keeps_waiting=True)

    async def tell_reason(self, run_id: str, proposal: Proposal) -> Transition:
        """Rewrite a waiting run's Scheduled state with its reason."""
        return await self._set_state(run_id, proposal, at="prefect.reason.write", keeps_waiting=True)

    async def requeue(self, run_id: str, proposal: Proposal) -> Transition:
        """Put a run that gave way (or lost its infrastructure) back in the queue."""
        return await self._set_state(run_id, proposal, at="prefect.requeue.write")

    async def restore(self, run_id: str, state: RunState) -> Transition:
        """Force back a state that a Scheduled write of ours has overwritten."""
        kept = {key: state.raw.get(key) for key in ("type", "name", "message", "data", "state_details")}
        return await self._send_state(run_id, kept, force=True, at="prefect.restore.write")

    async def finish(self, run_id: str, proposal: Proposal, *, force: bool = False) -> Transition:
        """Write the final state of a run whose processes are gone."""
        once = _id_of_end(run_id, proposal)
        return await self._set_state(run_id, proposal, force=force, at="prefect.final.write", transition_id=once)

    async def cancel(self, run_id: str, message: str) -> Transition:
        """Ask for the run's cancellation, as the UI does."""
        proposal = Proposal(type="CANCELLING", name="Cancelling", message=message)
        return await self._set_state(run_id, proposal, at="prefect.cancel.write")

    async def cancelled(self, run_id: str, message: str) -> Transition:
        """Complete a cancellation."""
        proposal = Proposal(type="CANCELLED", name="Cancelled", message=message)
        once = _id_of_end(run_id, proposal)
        return await self._set_state(run_id, proposal, at="prefect.cancelled.write", transition_id=once)

    async def forget_infrastructure(self, run_id: str) -> None:
        """A queued run has no infrastructure: with a pid, a Cancel in the UI would hang in Cancelling."""
        await self._patch(run_id, {"infrastructure_pid": None}, at="prefect.requeue.pid")

    async def override_job_variables(self, run_id: str, job_variables: Mapping[str, Any]) -> None:
        """Replace the run's own job variables."""
        await self._patch(run_id, {"job_variables": dict(job_variables)}, at="prefect.priority.write")

    async def update_template(self, pool: str, template: Mapping[str, Any]) -> None:
        """Replace the pool's base job template."""
        body = {"base_job_template": dict(template)}
        await self._write("PATCH", "/work_pools/{pool}", {"pool": pool}, body, at="prefect.template.write")

    async def artifact(self, *, key: str, kind: str, data: Any, description: str, run_id: str | None = None) -> None:
        """Publish an artifact (a new version of its key), on a run's page when `run_id` is given.

        Tried once: the server cannot tell a repeated request from a second artifact.
        """
        body: dict[str, Any] = {"key": key, "type": kind, "data": data, "description": description}
        if run_id is not None:
            body["flow_run_id"] = run_id
        await self._write("POST", "/artifacts/", {}, body, at="prefect.artifact.write", attempts=1)

    async def logs(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append log lines."""
        await self._write("POST", "/logs/", {}, list(lines), at="prefect.logs.write")

    # The wire

    async def _set_state(
        self,
        run_id: str,
        proposal: Proposal,
        *,
        at: str,
        force: bool = False,
        keeps_waiting: bool = False,
        transition_id: str | None = None,
    ) -> Transition:
        return await self._send_state(
            run_id, proposal.to_json(""), at=at, force=force, keeps_waiting=keeps_waiting, transition_id=transition_id
        )

    async def _send_state(
        self,
        run_id: str,
        state: dict[str, Any],
        *,
        at: str,
        force: bool,
        keeps_waiting: bool = False,
        transition_id: str | None = None,
    ) -> Transition:
        transition_id = transition_id or str(uuid4())
        if keeps_waiting:
            transition_id = KEEPS_WAITING + transition_id[len(KEEPS_WAITING) :]
        details = {**(state.get("state_details") or {}), "transition_id": transition_id, "flow_run_id": run_id}
        body = {"state": {**state, "state_details": details}, "force": force}

        async def applied() -> Any:
            """The answer, had it not been lost: the server writes a forced state as often as it is sent."""
            run = await self.run(run_id)
            is_ours = run is not None and run.state.transition_id == transition_id
            return {"status": "ACCEPT", "state": run.state.raw} if run is not None and is_ours else None

        async with self._state_writes:
            answer = await self._write(
                "POST",
                "/flow_runs/{id}/set_state",
                {"id": run_id},
                body,
                at=at,
                applied=applied if force else None,
            )
        now = RunState.from_json(answer["state"]) if answer.get("state") else None
        accepted = answer["status"] == "ACCEPT" or (now is not None and now.transition_id == transition_id)
        detail = str((answer.get("details") or {}).get("reason") or "")
        return Transition(accepted=accepted, state=now, detail=detail)

    async def _patch(self, run_id: str, body: Mapping[str, Any], *, at: str) -> None:
        await self._write("PATCH", "/flow_runs/{id}", {"id": run_id}, body, at=at)

    async def _write(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        body: Any,
        *,
        at: str,
        attempts: int = ATTEMPTS,
        applied: Callable[[], Awaitable[Any]] | None = None,
    ) -> Any:
        async for attempt in _retrying(attempts):
            with attempt:
                if applied is not None and attempt.retry_state.attempt_number > 1:
                    answer = await applied()
                    if answer is not None:
                        return answer
                try:
                    with fault_point(at):
                        return await self._request(method, path, names, body)
                except InjectedError as error:
                    raise ApiUnavailable(f"{method} {path}: {error}") from error
        raise AssertionError("tenacity reraises")

    async def _read(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        body: Any = None,
        *,
        params: dict[str, Any] | None = None,
    ) -> Any:
        async for attempt in _retrying():
            with attempt:
                return await self._request(method, path, names, body, params=params)
        raise AssertionError("tenacity reraises")

    async def _request(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        body: Any,
        *,
        params: dict[str, Any] | None = None,
    ) -> Any:
        where = path.format(**names)
        options: dict[str, Any] = {"timeout": REQUEST_SECONDS}
        if body is not None:
            options["json"] = body
        try:
            response = await self._client.request(method, where, params=params, **options)  # type: ignore[arg-type]
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status >= 500 or status in (408, 429):
                raise ApiUnavailable(f"{method} {where}: HTTP {status}") from error
            raise ApiRefused(f"{method} {where}: HTTP {status} {error.response.text[:300]}", status=status) from error
        except (httpx.HTTPError, OSError, RuntimeError) as error:
            raise ApiUnavailable(f"{method} {where}: {type(error).__name__} {error}") from error
        return response.json() if response.content else None


def _retrying(attempts: int = ATTEMPTS) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(ApiUnavailable),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )
