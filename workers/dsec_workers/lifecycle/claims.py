"""From a reservation to a started gang: Pending in Prefect, then the launch; what fails undoes all of it.

A first start asks the server for one thing, Pending. Only where the run's retry policy must change (after an eviction,
a restart, or a retry that a lost process left behind) a PATCH of the whole policy follows, before the launch. The
infrastructure id travels with a request that the engine makes anyway. The server lets Pending replace a Completed or
Failed that a user set in the same instant: a first start finds that out by itself, before any user code
(`engine.is_overtaken`); for the others the history is read.

Everything can be repeated: the ledger's state says how far a claim got, the run's own state says whether Pending is
ours (its message carries our mark), and a launch of a key that exists adopts it.
"""

from collections.abc import Mapping

from dsec_blocks.model.errors import ClusterError, InvalidRequest
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.names import ENV_INFRASTRUCTURE, ENV_LAST_COMMIT, ENV_NEVER_STARTED
from dsec_workers.clusters.protocol import LaunchOrder
from dsec_workers.lifecycle.scheduled import ended_since_scheduled, write_scheduled
from dsec_workers.lifecycle.term import LaunchSettings, Term, key_of, waiting_name
from dsec_workers.prefect_api import Proposal, Run

MARK = "Claimed by DSec"
START_BACKOFF_SECONDS = 5.0
LONGEST_START_BACKOFF_SECONDS = 300.0


async def claim(term: Term, run_id: str, hold_start: bool) -> None:
    """Carry a reserved (or claimed, but not yet launched) gang on until it is launched, or undo it whole."""
    gang = await term.gang(run_id)
    if gang is None or gang.state not in (GangState.RESERVED, GangState.LAUNCHING) or gang.launch:
        return
    run = term.runs.get(run_id)
    if run is None or gang.attempt > 1 or gang.state is GangState.LAUNCHING:
        run = await term.api.run(run_id)
    if run is None:
        await undo(term, gang, None, why="the run was deleted")
        return
    try:
        settings = await term.launch_settings(run)
    except (InvalidRequest, ValueError, TypeError) as error:
        backoff = term.clock.now() + LONGEST_START_BACKOFF_SECONDS
        await undo(term, gang, run, why=f"its job variables cannot be used: {error}", not_before=backoff)
        return
    if gang.state is GangState.RESERVED:
        pending = await _pending(term, gang, run)
        if pending is None:
            return
        user_retries = gang.user_retries if gang.user_retries is not None else run.retries
        await term.mark(term.ledger.claimed_all, run_id, gang.attempt, user_retries)
        term.metrics.claimed(gang, term.clock.now())
    else:
        user_retries = gang.user_retries
        if not _is_ours(run):
            await undo(term, gang, run, why=f"the run is {run.state.name}")
            return
    if (run.has_started or settings.command is not None) and await put_back(term, run_id):
        await undo(term, gang, run, why="it was ended in the moment of its claim")
        return
    wanted = policy(run, gang, user_retries)
    if settings.command is not None or differs(wanted, run.policy):
        await term.api.claim_policy(run_id, infrastructure_pid=pid_of(term.pool, gang), policy=wanted)
    await _launch(term, gang, run, settings, hold_start)


def policy(run: Run, gang: Gang, user_retries: int | None) -> dict[str, object]:
    """The whole retry policy for this attempt: absolute, so that writing it twice counts nothing twice.

    The server counts every start against the retries, so each start that was our doing is added. None stays None: the
    engine then takes the flow's own. `retry_type` is cleared, or a run that once retried in its process would never
    be polled again.
    """
    ours = gang.evictions + gang.infrastructure_restarts
    retries = None if user_retries is None else user_retries + ours
    return {**run.policy, "retries": retries, "retry_type": None}


def differs(wanted: Mapping[str, object], present: Mapping[str, object]) -> bool:
    """Whether a policy says something else than the run's present one; a field that is absent is null."""
    return any(wanted.get(name) != present.get(name) for name in {*wanted, *present})


def pid_of(pool: str, gang: Gang) -> str:
    """The infrastructure id of one attempt; `attempt_of` is the inverse."""
    return f"dsec:{pool}:{gang.run_id}:{gang.attempt}"


def attempt_of(infrastructure_pid: str) -> tuple[str, str, int] | None:
    """Pool, run and attempt named by an infrastructure id of ours."""
    parts = infrastructure_pid.split(":")
    if len(parts) != 4 or parts[0] != "dsec" or not parts[3].isdigit():
        return None
    return parts[1], parts[2], int(parts[3])


async def undo(term: Term, gang: Gang, run: Run | None, *, why: str, not_before: float | None = None) -> None:
    """Give everything back: the devices first, then the notices that were given for it, then the run.

    The gang waits again from the commit on, and a plan may begin at once; so it is astray from before that, until
    Prefect has said that its run is Scheduled. A run that has ended meanwhile would be admitted once more otherwise.
    """
    if gang.state is not GangState.RESERVED:
        # A launch whose answer was lost may have left processes.
        await term.cluster.stop(key_of(gang), 0.0)
    term.astray.add(gang.run_id)
    victims = await term.write(term.ledger.undo_admission, gang.run_id, gang.attempt, why=why, not_before=not_before)
    term.decide("claim", "undone", run_id=gang.run_id, why=why)
    for victim in victims:
        await withdraw(term, victim)
    term.forget_attempt(key_of(gang))
    if run is None:
        await term.write(term.ledger.forget_waiting, [gang.run_id])
        term.forget(gang.run_id)
        term.astray.discard(gang.run_id)
    else:
        await give_back(term, gang, await term.api.run(gang.run_id), why=why)
    term.ring()


async def put_back(term: Term, run_id: str) -> bool:
    """Restore the final state that our Pending has replaced, if it did; whether the run is over."""
    lost = ended_since_scheduled(await term.api.history(run_id))
    if lost is None:
        return False
    present = await term.api.run(run_id)
    if present is not None and _is_ours(present):
        await term.api.restore(run_id, lost)
    return True


async def give_back(term: Term, gang: Gang, run: Run | None, *, why: str) -> None:
    """Make a run that is Pending by our claim Scheduled again; one that is not Scheduled then is astray."""
    is_scheduled = run is not None and run.state.type == "SCHEDULED"
    if run is not None and _is_ours(run):
        proposal = Proposal(type="SCHEDULED", name=waiting_name(run), message=why, scheduled_time=gang.eligible_at)
        if run.infrastructure_pid is not None:
            await term.api.forget_infrastructure(run.id)
        written = await write_scheduled(term.api, term.api.undo_claim, run.id, proposal, base=run.state)
        is_scheduled = written is not None
    if is_scheduled:
        term.astray.discard(gang.run_id)
    else:
        term.astray.add(gang.run_id)


async def withdraw(term: Term, victim_id: str) -> None:
    """Take back a notice whose cause has gone, if the victim has not answered it."""
    victim = await term.read(term.ledger.gang, victim_id)
    if victim is None or victim.state is not GangState.EVICTING:
        return
    key = key_of(victim)
    if key in term.notices and not await term.cluster.withdraw(key):
        return
    await term.write(term.ledger.withdraw_eviction, victim_id, victim.attempt)
    term.notices.pop(key, None)
    term.leave_by.pop(key, None)
    term.leaving_soon.discard(key)


async def _pending(term: Term, gang: Gang, run: Run) -> Run | None:
    if run.state.type not in ("SCHEDULED", "PENDING"):
        await undo(term, gang, run, why=f"the run is {run.state.name}")
        return None
    assert gang.placement is not None
    nodes = ", ".join(member.node for member in gang.placement.members)
    mark = f"{MARK}: attempt {gang.attempt} on {nodes}"
    transition = await term.api.claim_pending(gang.run_id, mark)
    if transition.accepted:
        return run
    present = await term.api.run(gang.run_id)
    if present is not None and _is_ours(present):
        return present
    later = None
    if present is not None and present.state.type == "SCHEDULED":
        # The server put it off (a deployment's concurrency limit); its time is the server's.
        later = max(present.state.scheduled_time or 0.0, term.clock.now() + START_BACKOFF_SECONDS)
        term.runs[present.id] = present
    await undo(term, gang, present, why=transition.detail or "the claim was refused", not_before=later)
    return None


async def _launch(term: Term, gang: Gang, run: Run, settings: LaunchSettings, hold_start: bool) -> None:
    assert gang.placement is not None
    present = await term.gang(gang.run_id)
    if present is None or present.attempt != gang.attempt or present.state is not GangState.LAUNCHING:
        return
    order = LaunchOrder(
        key=key_of(gang),
        name=settings.name,
        request=gang.request,
        placement=gang.placement,
        env={
            **settings.env,
            ENV_LAST_COMMIT: "" if gang.last_step is None else str(gang.last_step),
            ENV_INFRASTRUCTURE: pid_of(term.pool, gang),
            ENV_NEVER_STARTED: "" if run.has_started else "1",
        },
        command=settings.command,
        working_dir=settings.working_dir,
        job_manifest=settings.job_manifest,
        team=gang.team,
        labels=settings.labels,
        hold_start=hold_start,
        start_timeout_seconds=start_timeout(term, gang),
        known=await settings.known(),
    )
    try:
        launch = await term.cluster.launch(order)
    except ClusterError as error:
        backoff = min(LONGEST_START_BACKOFF_SECONDS, START_BACKOFF_SECONDS * 2 ** min(gang.attempt - 1, 6))
        await undo(term, gang, run, why=f"start failed: {error}", not_before=term.clock.now() + backoff)
        return
    await term.mark(term.ledger.launched_all, gang.run_id, gang.attempt, dict(launch))
    term.decide("launch", "launched", run_id=gang.run_id, detail={"attempt": gang.attempt, "held": hold_start})


def start_timeout(term: Term, gang: Gang) -> float:
    """How long the start barrier may stay shut: a preemptor waits for the longest grace among its victims."""
    now = term.steady()
    return term.settings.reservation_seconds + max([0.0, *(until - now for until in term.leave_by.values())])


def _is_ours(run: Run) -> bool:
    if run.state.type != "PENDING":
        return False
    return run.state.message.startswith(MARK) or attempt_of(run.infrastructure_pid or "") is not None
