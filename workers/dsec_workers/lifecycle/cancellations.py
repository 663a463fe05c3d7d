"""Cancellation at any moment of a run's life, and gangs whose run has moved on without them.

Prefect's own worker cancels only before a start; here every Cancelling run of the pool is looked at each tick, and
each is finished: what runs is stopped with its grace, what only waits is Cancelled at once.
"""

from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_workers.lifecycle import claims
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.prefect_api import Run
from dsec_workers.prefect_api.results import TERMINAL, iso

WARNING = 30  # the log level


async def look(term: Term) -> None:
    """Find the pool's Cancelling runs, and act on each."""
    for run in await term.api.in_states(term.pool, ["CANCELLING"]):
        start(term, run)


async def look_at_holders(term: Term, gangs: list[Gang]) -> None:
    """Find runs that ended or pause while their gang holds devices: forced states emit no Cancelling.

    Thousands may hold devices, so only those runs are read, and all of them only when one was deleted.
    """
    ids = [gang.run_id for gang in gangs]
    for run in (await term.api.runs(ids, types={*TERMINAL, "PAUSED"})).values():
        await heard(term, run)
    if await term.api.how_many(ids) < len(ids):
        found = await term.api.runs(ids)
        for run_id in ids:
            if run_id not in found:
                term.errands.start(run_id, "cancel", observe, term, run_id, None)


def start(term: Term, run: Run) -> None:
    """Act on `run` as soon as nothing else is being done about it."""
    term.errands.start(run.id, "cancel", observe, term, run.id, run)


async def heard(term: Term, run: Run) -> None:
    """A run that is not Scheduled, named by an event or found by a look: ends, cancellations and pauses are news."""
    if run.state.type == "CANCELLING" or run.state.terminal:
        start(term, run)
    elif run.state.type == "PAUSED" and not run.state.suspended and term.pauses_told.get(run.id) != run.state.id:
        # A log that cannot be written must not keep the ends of other runs from being found.
        term.errands.start(f"log:{run.id}", "log", _say_what_a_pause_costs, term, run)


async def observe(term: Term, run_id: str, run: Run | None) -> None:
    """Compare the run's state with its gang's, and do what follows."""
    gang = await term.read(term.ledger.gang, run_id)
    over = run is None or run.state.terminal
    cancelling = run is not None and run.state.type == "CANCELLING"
    if gang is None or gang.state is GangState.ENDED:
        if cancelling:
            present = await term.api.run(run_id)  # what was read may be older than our own answer to it
            if present is not None and present.state.type == "CANCELLING":
                await term.api.cancelled(run_id, "Cancelled; it had no processes.")
        return
    if not (over or cancelling):
        return
    if gang.state is GangState.WAITING:
        if cancelling:
            await term.api.cancelled(run_id, "Cancelled while waiting.")
        await _forget(term, run_id)
    elif gang.state is GangState.RESERVED or (gang.state is GangState.LAUNCHING and not gang.launch):
        await claims.undo(term, gang, run, why="cancelled")
        term.ring()
    elif gang.state is not GangState.LEAVING and key_of(gang) not in term.stopping:
        await _stop(term, gang, run)


def look_at_astray(term: Term) -> None:
    """Have the astray looked at. Each stays out of every plan until its look has an answer: its key may be busy now."""
    for run_id in list(term.astray):
        term.errands.start(run_id, "cancel", look_astray, term, run_id)


async def look_astray(term: Term, run_id: str) -> None:
    """A gang waits here, but its run is not Scheduled as far as we know: find out why, and mend it."""
    run = await term.api.run(run_id)
    gang = await term.read(term.ledger.gang, run_id)
    term.astray.discard(run_id)  # whatever is still wrong with it puts it back
    try:
        await _mend(term, run_id, run, gang)
    except Exception:
        term.astray.add(run_id)
        raise


async def _mend(term: Term, run_id: str, run: Run | None, gang: Gang | None) -> None:
    if gang is None or gang.state is not GangState.WAITING:
        return
    if run is not None and run.state.type == "SCHEDULED":
        term.runs[run_id] = run
        return
    if run is None or run.state.terminal or run.state.type == "CANCELLING":
        await observe(term, run_id, run)
    elif run.state.type == "PENDING":
        await claims.give_back(term, gang, run, why="its claim was interrupted")
    else:
        # Running, or paused, without us: whoever started it owns it.
        await _forget(term, run_id)


async def _forget(term: Term, run_id: str) -> None:
    """It waits here no more; passers that were told to leave for it stay, where that can still be taken back.

    Taken back first: nobody would ask a second time for a gang that has ended. Until then it is in no plan.
    """
    term.astray.add(run_id)
    for eviction in await term.read(term.ledger.evictions, term.pool):
        if eviction.for_run == run_id:
            await claims.withdraw(term, eviction.run_id)
    await term.write(term.ledger.forget_waiting, [run_id])
    term.forget(run_id)
    term.astray.discard(run_id)


async def _stop(term: Term, gang: Gang, run: Run | None) -> None:
    key = key_of(gang)
    natural = run is not None and run.state.type in ("COMPLETED", "FAILED", "CRASHED")
    if natural:
        # Uploads are part of a gang's life, and somebody else's word (a zombie automation's, say) may be wrong.
        since = term.over_since.setdefault(key, term.clock.monotonic())
        if term.clock.monotonic() - since < term.settings.linger_seconds:
            return
    term.stopped_for[key] = "over" if natural else "cancelled"
    children = [] if natural or run is None else _children(term, gang.run_id)
    term.astray |= {child.run_id for child in children if child.state is GangState.WAITING}
    await term.cluster.stop(key, gang.request.grace_seconds)
    term.stopping.add(key)  # only now: a stop that failed is asked for again by the next look
    term.decide("cancel", "stopping", run_id=gang.run_id, why="deleted" if run is None else run.state.name)
    for child in children:
        await term.api.cancel(child.run_id, "The parent flow run was cancelled.")


def _children(term: Term, run_id: str) -> list[Gang]:
    """Gangs of runs that the run started by `run_deployment`.

    The server cancels them too, but looks only every twenty seconds: meanwhile they would start on the devices that
    their parent leaves, for nobody.
    """
    return [gang for gang in term.gangs.values() if gang.parent_run_id == run_id]


async def _say_what_a_pause_costs(term: Term, run: Run) -> None:
    gang = await term.read(term.ledger.gang, run.id)
    if gang is None or gang.state not in HOLDING_STATES or gang.request.devices == 0:
        return
    message = f"Paused: this run keeps its {gang.request.describe()} meanwhile; suspend it to let them go."
    line = {"name": "dsec.worker", "level": WARNING, "message": message, "flow_run_id": run.id}
    await term.api.logs([{**line, "timestamp": iso(term.clock.now())}])
    term.pauses_told[run.id] = run.state.id  # until then every look tries again
