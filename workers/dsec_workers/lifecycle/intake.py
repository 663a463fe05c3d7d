"""How a Scheduled flow run becomes a waiting gang.

A fast poll reads only the runs that became due since the last one; a slower sweep pages through everything, team by
team, because one answer holds 200 runs and a backdated run or a lost answer must be found too. Absence from an answer
means nothing: only the run itself says that it is gone. What a fast poll has seen it does not ask for again until it
is due: each run in an answer costs the server a millisecond or two.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import anyio
import httpx
from prefect.exceptions import ObjectNotFound

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_blocks.model.requests import MAX_DEVICES_PER_NODE, MAX_NODES, GangRequest, parse_request
from dsec_blocks.model.teams import Team
from dsec_workers.form import GangJobConfiguration, default_template
from dsec_workers.lifecycle.deployments import Deployments
from dsec_workers.lifecycle.pool_form import PoolForm
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiUnavailable, Run
from dsec_workers.prefect_api.gateway import PAGE
from dsec_workers.scheduling.reasons import above_highest_priority

_T = TypeVar("_T")

LOOKAHEAD_SECONDS = 30.0
OVERLAP_SECONDS = 5.0
AT_ONCE_SECONDS = 0.5
"""A run due so soon after the server wrote its state was to start at once."""
USER_TAG = "user:"
INERT = GangRequest(nodes=MAX_NODES, devices_per_node=MAX_DEVICES_PER_NODE, preemptible=False)
"""Stored for an invalid request: should anybody plan it, it fits nowhere."""


class NotThere(InvalidRequest):
    """Job variables refer to a block that does not exist, or may not be read."""


@dataclass(kw_only=True)
class Intake:
    """What the intake remembers between polls."""

    observe: Callable[[Term, Run], Awaitable[None]]
    """Told of runs of this pool that are not Scheduled (any more)."""
    client: Any
    """Prefect's own client, for the block and variable references in job variables."""
    polled_at: float | None = None
    swept_at: float | None = None
    """When the last sweep began (monotonic)."""
    arrived_at: float = float("-inf")
    """When the last event named a run (monotonic)."""
    form: PoolForm = field(default_factory=PoolForm)
    deployments: Deployments = field(default_factory=Deployments)
    parents: dict[str, str | None] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)
    """Runs that the ledger knows as waiting (or further), as far as this worker has seen."""
    said: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    entering: anyio.Lock = field(default_factory=anyio.Lock)
    """A poll and a sweep must not both decide that an ended run has come back."""
    seen: dict[str, float] = field(default_factory=dict)
    """Runs of the last fast polls, and when they are due."""
    teams: Mapping[str, Team] = field(default_factory=dict)
    """As the last poll saw them."""
    mentioned: set[str] = field(default_factory=set)
    """Runs that an event named."""
    unresolved: set[str] = field(default_factory=set)
    """Waiting runs whose job variables refer to what is not there, by the last look."""

    async def poll(self, term: Term) -> None:
        """Read what became due and enter it; page through everything when a sweep is due."""
        now = term.clock.now()
        await self._read_pool(term)
        await self._reconsider(term)
        if self.swept_at is None or term.clock.monotonic() - self.swept_at >= term.settings.sweep_seconds:
            term.errands.start("sweep", "sweep", self._sweep, term, now)
        # A clock that went back must not leave a gap that no poll looks into.
        after = min(self.polled_at if self.polled_at is not None else now, now) - OVERLAP_SECONDS
        known = self._known(now, after)
        offset = 0
        while True:
            began = term.clock.monotonic()
            page = await term.api.scheduled(
                term.pool, before=now + LOOKAHEAD_SECONDS, after=after, known=known, offset=offset
            )
            await self.enter(term, page, since=began)
            self.seen |= {run.id: run.due for run in page if run.due is not None}
            offset += len(page)
            if len(page) < PAGE:
                break
        self.polled_at = now

    async def _reconsider(self, term: Term) -> None:
        """Enter the refused again once a team was added or changed: no fast poll names them a second time."""
        teams = await term.read(term.ledger.teams, term.pool)
        if teams == self.teams:
            return
        refused = [term.runs[run_id] for run_id in list(term.refused) if run_id in term.runs]
        await self.enter(term, refused, since=term.clock.monotonic())
        self.teams = teams

    def _known(self, now: float, after: float) -> set[str]:
        """Runs that a fast poll has seen and that are not due yet, or that have entered since."""
        self.seen = {run_id: due for run_id, due in self.seen.items() if due >= after}
        return {run_id for run_id, due in self.seen.items() if due > now or run_id in self.entered}

    async def reread(self, term: Term) -> None:
        """Read the runs that events named, by id."""
        if not self.form.template:  # an event may come before the first poll, and the form goes for its run too
            await self._read_pool(term)
        mentioned = sorted(self.mentioned)
        self.mentioned.clear()
        if mentioned:
            self.arrived_at = term.clock.monotonic()
            began = term.clock.monotonic()
            async with anyio.create_task_group() as beside:
                # Deployments that are in use are read beside the runs, since one may just have been redeployed.
                beside.start_soon(self._read_ahead, term)
                answer = await _caught(term.api.runs(mentioned))
            if isinstance(answer, ApiUnavailable):
                self.mentioned |= set(mentioned)
                raise answer
            found = [run for run in answer.values() if self._ours(term, run)]
            await self.enter(term, [run for run in found if run.state.type == "SCHEDULED"], since=began)
            for run in found:
                if run.state.type != "SCHEDULED":
                    await self.observe(term, run)

    async def configuration(self, term: Term, run: Run) -> GangJobConfiguration:
        """The run's job variables, merged: pool ← deployment ← run, references resolved."""
        deployment = await self.deployments.of(term, run)
        values: dict[str, Any] = dict(deployment.job_variables) if deployment else {}
        own = dict(run.job_variables)
        if isinstance(values.get("env"), Mapping) and isinstance(own.get("env"), Mapping):
            own["env"] = {**values["env"], **own["env"]}
        values |= own
        try:
            configuration: GangJobConfiguration = await GangJobConfiguration.from_template_and_values(
                base_job_template=dict(self.form.template) or default_template(), values=values, client=self.client
            )
        except ObjectNotFound as error:
            raise NotThere(str(error)) from error
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500 and error.response.status_code not in (408, 429):
                raise NotThere(f"what its job variables refer to cannot be read: {error}") from error
            raise ApiUnavailable(f"job variables of {run.name}: {error}") from error
        except httpx.TransportError as error:
            raise ApiUnavailable(f"job variables of {run.name}: {error}") from error
        return configuration

    async def enter(self, term: Term, found: Iterable[Run], *, since: float) -> None:
        """Put due runs into the ledger as waiting gangs; set a timer for those that are not due yet.

        `since` is when reading them began (monotonic): a deployment read after that is as new as they are.
        """
        now = term.clock.now()
        due = []
        for run in found:
            # What the server was asked to start at once does not wait for our clock.
            if run.due is not None and run.due > max(now, run.state.timestamp + AT_ONCE_SECONDS):
                term.poll_wake.at(run.due)
            elif run.state.type == "SCHEDULED":
                due.append(run)
        if not due:
            return
        async with self.entering:
            await self._enter_due(term, due, since)

    async def _enter_due(self, term: Term, due: Sequence[Run], since: float) -> None:
        await self.deployments.read_for(term, due, since=since, entered=self.entered)
        teams = await term.read(term.ledger.teams, term.pool)
        gangs: dict[str, Gang] = {}
        for run in due:
            if self._unchanged(term, run, teams):
                continue
            term.runs[run.id] = run
            gangs[run.id] = await self._gang(term, run, teams)
        await self._enqueue(term, gangs)

    def left(self, run_id: str) -> None:
        """The run is no longer waiting or running here; if it is Scheduled again, it is news."""
        self.entered.discard(run_id)
        self.said.pop(run_id, None)
        self.unresolved.discard(run_id)

    async def _enqueue(self, term: Term, gangs: dict[str, Gang]) -> None:
        if not gangs:
            return
        known = await term.read(term.ledger.states, list(gangs))
        ended = [run_id for run_id, state in known.items() if state is GangState.ENDED]
        if ended:
            # The answer may be older than the run's end: what has finished must not run again because of that.
            again = await term.api.runs(ended)
            for run_id in ended:
                run = again.get(run_id)
                if run is None or run.state.type != "SCHEDULED":
                    del gangs[run_id]
                    term.forget(run_id)
        entering = {r: g for r, g in gangs.items() if r not in known or known[r] in _ENTERABLE}
        await term.write(term.ledger.enqueue, list(entering.values()))
        self.entered |= set(entering)

    async def _gang(self, term: Term, run: Run, teams: Mapping[str, Team]) -> Gang:
        due = run.due if run.due is not None else term.clock.now()
        code: ReasonCode | None = None
        text: str | None = None
        request = INERT
        if run.queue not in teams:
            code, text = ReasonCode.UNKNOWN_TEAM, _unknown_team(run.queue, teams)
        try:
            configuration = await self.configuration(term, run)
            term.manifests[run.id] = configuration.job_manifest
            request = parse_request(configuration.request_variables)
            if code is None and request.priority > teams[run.queue].highest_priority:
                raise InvalidRequest(above_highest_priority(request, teams[run.queue]).text)
            self.unresolved.discard(run.id)
        except ApiUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one run must not keep the pool's others out
            code, text, request = ReasonCode.INVALID_REQUEST, _one_line(error), INERT
            if isinstance(error, NotThere):
                self.unresolved.add(run.id)
        if code is not None and text is not None:
            term.refused[run.id] = Reason(code=code, text=text)
        else:
            term.refused.pop(run.id, None)
        return Gang(
            run_id=run.id,
            name=run.name,
            pool=term.pool,
            team=run.queue,
            request=request,
            state=GangState.WAITING,
            submitted_at=due,
            eligible_at=due,
            reason_code=code,
            reason=text,
            parent_run_id=await self._parent(term, run),
            created_by=created_by(run),
            tags=run.tags,
            deployment=run.deployment_id or str(run.raw.get("flow_id") or ""),
        )

    async def _sweep(self, term: Term, now: float) -> None:
        swept_at = term.clock.monotonic()
        waiting = (run for run_id, run in list(term.runs.items()) if run_id in self.entered)
        await self.deployments.read_again(term, waiting)
        for run_id in self.unresolved:
            self.said.pop(run_id, None)  # what it refers to may have been made since
        seen: set[str] = set()
        unfinished = dict.fromkeys(self.form.queues, 0)
        while unfinished:
            for queue, offset in list(unfinished.items()):
                began = term.clock.monotonic()
                page = await term.api.scheduled(term.pool, before=now + LOOKAHEAD_SECONDS, queue=queue, offset=offset)
                seen |= {run.id for run in page}
                await self.enter(term, page, since=began)
                if len(page) < PAGE:
                    del unfinished[queue]
                else:
                    unfinished[queue] += PAGE
        await self._look_for(term, seen)
        await term.api.mark_ready(term.pool)
        self.swept_at = swept_at

    async def _look_for(self, term: Term, seen: set[str]) -> None:
        """Ask for the waiting gangs whose runs the sweep did not show; end those whose run is over or deleted."""
        missing = [run_id for run_id in await term.read(term.ledger.waiting, term.pool) if run_id not in seen]
        found = await term.api.runs(missing) if missing else {}
        for run_id in missing:
            run = found.get(run_id)
            if run is not None:
                term.runs[run_id] = run
            if run is None or run.state.type != "SCHEDULED":
                term.astray.add(run_id)

    async def _read_ahead(self, term: Term) -> None:
        await _caught(self.deployments.read_ahead(term))

    async def _read_pool(self, term: Term) -> None:
        if await self.form.read(term):
            self.entered.clear()

    async def _parent(self, term: Term, run: Run) -> str | None:
        task_run_id = run.parent_task_run_id
        if task_run_id is None:
            return None
        if task_run_id not in self.parents:
            self.parents[task_run_id] = await term.api.parent_run_id(str(UUID(task_run_id)))
        return self.parents[task_run_id]

    def _unchanged(self, term: Term, run: Run, teams: Mapping[str, Team]) -> bool:
        """Whether the run says what it said when it was entered; if so, only its newest state is kept."""
        deployment = self.deployments.known.get(run.deployment_id or "")
        said = (
            run.due, run.queue, run.name, run.deployment_id, run.tags, repr(run.job_variables),
            deployment.updated if deployment else "", tuple(sorted(teams.items())),
        )  # fmt: skip
        if run.id in self.entered and self.said.get(run.id) == said:
            term.runs[run.id] = run
            return True
        self.said[run.id] = said
        return False

    def _ours(self, term: Term, run: Run) -> bool:
        return run.raw.get("work_pool_name") == term.pool


_ENTERABLE = frozenset({GangState.WAITING, GangState.ENDED})


def created_by(run: Run) -> str:
    """Who started the run: a Prefect user (only Prefect Cloud and Customer Managed tell), else its tag `user:NAME`.

    A server without accounts leaves `created_by` empty, or names the automation or the deployment's schedule.
    """
    creator = run.raw.get("created_by") or {}
    if creator.get("type") == "USER" and creator.get("display_value"):
        return str(creator["display_value"])
    return next((tag.removeprefix(USER_TAG) for tag in run.tags if tag.startswith(USER_TAG)), "")


def _unknown_team(queue: str, teams: Mapping[str, Team]) -> str:
    return f"unknown team {queue}; teams are {', '.join(sorted(teams))}; `dsec team add {queue}`"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


async def _caught(asked: Awaitable[_T]) -> _T | ApiUnavailable:
    """The answer, or the failure as a value: a task group would wrap it."""
    try:
        return await asked
    except ApiUnavailable as error:
        return error
