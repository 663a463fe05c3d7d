"""What the cluster says, written into the ledger. Never asks Prefect, so devices change hands during an outage too."""

from collections.abc import Mapping
from typing import Any

from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_workers.clusters.protocol import (
    ClusterEvent,
    Committed,
    DevicesReleased,
    Gone,
    Progressed,
    Snapshotting,
    Started,
)
from dsec_workers.lifecycle.endings import outcome_of
from dsec_workers.lifecycle.term import Term


async def follow(term: Term) -> None:
    """Apply the cluster's events for ever, as they come."""
    async for event in term.cluster.events():
        await apply(term, event)


async def apply(term: Term, event: ClusterEvent) -> None:
    """Write one event down. Events repeat and come late: the ledger decides what is news."""
    key, ledger = event.key, term.ledger
    match event:
        case Started():
            if await term.write(ledger.started, *key, event.at):
                term.decide("start", "started", run_id=key.run_id, detail={"attempt": key.attempt})
                if key in term.admitted_at:
                    term.metrics.started("launch", event.at - term.admitted_at[key])
            return
        case Progressed():
            await term.write(
                ledger.progressed, *key, step=event.step, metrics=event.metrics, has_on_evict=event.has_on_evict
            )
            if event.step is None:
                return
            admitted_at = term.admitted_at.pop(key, None)
            if admitted_at is not None:
                await term.write(ledger.timed, *key, restart_seconds=max(0.0, event.at - admitted_at))
                term.metrics.started("first_step", event.at - admitted_at)
            return
        case Committed():
            await term.write(ledger.committed, *key, at=event.at, step=event.step, seconds=event.seconds)
        case Snapshotting():
            term.leaving_soon.add(key)
        case DevicesReleased():
            await term.write(ledger.release_devices, *key)
            noticed_at = term.noticed_at.pop(key, None)
            if noticed_at is not None:
                await term.write(ledger.timed, *key, checkpoint_seconds=max(0.0, event.at - noticed_at))
                term.metrics.handed_over(event.at - noticed_at)
        case Gone():
            await _gone(term, event)
    term.ring()


async def _gone(term: Term, event: Gone) -> None:
    key = event.key
    gang = await term.read(term.ledger.gang, key.run_id)
    if gang is None or gang.attempt != key.attempt or gang.state in (GangState.WAITING, GangState.ENDED):
        # An attempt that was undone or that a successor has already dealt with.
        term.forget_attempt(key)
        await term.cluster.forget(key)
        return
    if gang.state not in HOLDING_STATES:
        return
    notice = term.notices.get(key)
    stopped_for = term.stopped_for.get(key)
    if stopped_for is None and event.timed_out:
        stopped_for = "timed-out"
        term.decide("limit", "stopped", run_id=key.run_id, why="max_runtime is over")
    outcome: Mapping[str, Any] = outcome_of(
        event, gang=gang, reason=notice.reason if notice else None, stopped_for=stopped_for
    )
    await term.write(term.ledger.leave, *key, outcome)
