"""What the cluster says, written into the ledger. Never asks Prefect, so devices change hands during an outage too.

What several gangs do at the same time is written together: events are taken as they come, those of one gang are
applied in their order, those of different gangs side by side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_workers.clusters.protocol import (
    ClusterEvent,
    Committed,
    DevicesReleased,
    GangKey,
    Gone,
    Preparing,
    Progressed,
    Snapshotting,
    Started,
)
from dsec_workers.lifecycle.endings import outcome_of
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api.results import iso

INFO = 20  # the log level
GANGS_AT_ONCE = 32
AHEAD = 256
"""Events that are taken while others are being written; more of them wait with the cluster."""


async def follow(term: Term) -> None:
    """Apply the cluster's events as they come, until the cluster wants to be adopted anew.

    Raises what the first event that could not be written raised; adoption then tells what else there was.
    """
    heard, events = anyio.create_memory_object_stream[ClusterEvent](AHEAD)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_hear, term, heard)
            async for event in events:
                await apply_all(term, [event, *_waiting(events)])
    except ExceptionGroup as several:
        raise _first(several) from several


async def apply_all(term: Term, events: Sequence[ClusterEvent]) -> None:
    """Write events down, those of different gangs side by side."""
    by_gang: dict[GangKey, list[ClusterEvent]] = {}
    for event in events:
        by_gang.setdefault(event.key, []).append(event)
    limiter = anyio.CapacityLimiter(GANGS_AT_ONCE)

    async def in_order(some: Sequence[ClusterEvent]) -> None:
        async with limiter:
            for event in some:
                await apply(term, event)

    if len(by_gang) == 1:
        await in_order(events)
        return
    async with anyio.create_task_group() as group:
        for some in by_gang.values():
            group.start_soon(in_order, some)


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _hear(term: Term, heard: MemoryObjectSendStream[ClusterEvent]) -> None:
    with heard:
        async for event in term.cluster.events():
            await heard.send(event)


def _waiting(events: MemoryObjectReceiveStream[ClusterEvent]) -> list[ClusterEvent]:
    found: list[ClusterEvent] = []
    while events.statistics().current_buffer_used:
        found.append(events.receive_nowait())
    return found


async def apply(term: Term, event: ClusterEvent) -> None:
    """Write one event down. Events repeat and come late: the ledger decides what is news."""
    key, ledger = event.key, term.ledger
    match event:
        case Started():
            if event.cards:
                cards = {node: list(names) for node, names in event.cards.items()}
                await term.mark(ledger.observed_all, *key, cards)
            if await term.mark(ledger.started_all, *key, event.at):
                term.decide("start", "started", run_id=key.run_id, detail={"attempt": key.attempt})
                if key in term.admitted_at:
                    term.metrics.started("launch", event.at - term.admitted_at[key])
            return
        case Preparing():
            term.decide("start", "waits", run_id=key.run_id, why=event.why, detail={"attempt": key.attempt})
            term.errands.start(f"log:{key.run_id}", "log", _say, term, event)
            return
        case Progressed():
            await term.mark(ledger.progressed_all, *key, event.step, event.metrics, event.has_on_evict)
            if event.step is None:
                return
            admitted_at = term.admitted_at.pop(key, None)
            if admitted_at is not None:
                await term.mark(ledger.timed_all, *key, None, max(0.0, event.at - admitted_at))
                term.metrics.started("first_step", event.at - admitted_at)
            return
        case Committed():
            await term.mark(ledger.committed_all, *key, event.at, event.step, event.seconds)
        case Snapshotting():
            term.leaving_soon.add(key)
        case DevicesReleased():
            await term.mark(ledger.release_all, *key)
            noticed_at = term.noticed_at.pop(key, None)
            if noticed_at is not None:
                await term.mark(ledger.timed_all, *key, max(0.0, event.at - noticed_at), None)
                term.metrics.handed_over(event.at - noticed_at)
        case Gone():
            await _gone(term, event)
    term.ring()


async def _say(term: Term, event: Preparing) -> None:
    """In the run's log: while it is Pending its state cannot be told anew."""
    message = f"Its start takes longer: {event.why}"
    line = {"name": "dsec.worker", "level": INFO, "message": message, "flow_run_id": event.key.run_id}
    await term.api.logs([{**line, "timestamp": iso(event.at)}])


async def _gone(term: Term, event: Gone) -> None:
    key = event.key
    gang = await term.gang(key.run_id)
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
    await term.mark(term.ledger.leave_all, *key, outcome)
