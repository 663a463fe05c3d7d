"""How a gang leaves: devices first, then the outcome, then (once Prefect knows) back into the queue or to its end, or
onwards to where it is to go on (`resuming`).

`leaving` is the outbox: the outcome is durable, the Prefect state is still to be written, and a leader that restarts
finds the row and writes it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from dsec_blocks.ledger import durations, evictions, node_failures, prefetches, reservations, resuming, schema
from dsec_blocks.ledger.reservations import Holder
from dsec_blocks.ledger.rows import GANG_COLUMNS, chunks, gangs_of
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState, Placement
from dsec_blocks.model.node_failures import ALWAYS_THE_MACHINE

_gangs = schema.gangs


class Back(NamedTuple):
    """A gang that is to wait again, as `Leaving.requeue` has it."""

    run_id: str
    attempt: int
    evicted: bool
    infrastructure: bool = False
    not_before: float | None = None
    resume_by: float | None = None


class Leaving(Transactions):
    """Each step may be repeated; one of an attempt that is over changes nothing and says False."""

    def release_devices(self, fence: Fence, run_id: str, attempt: int) -> bool:
        """No process of the gang uses a device any more: whoever they are promised to has them now. Its state stays.

        What the gang itself was promised and had not got yet goes too.
        """
        return self.release_all(fence, [(run_id, attempt)])[0]

    def release_all(self, fence: Fence, attempts: Sequence[tuple[str, int]]) -> list[bool]:
        """`release_devices` of each (run, attempt), in one transaction."""
        now = self._clock.now()
        with self.transaction(at="ledger.release_devices", fence=fence) as connection:
            known = _known(connection, [run_id for run_id, _ in attempts])
            holders = [_holder(gang) for gang in known.values() if (gang.run_id, gang.attempt) in attempts]
            reservations.release(connection, holders, now=now)
            return [run_id in known and known[run_id].attempt == attempt for run_id, attempt in attempts]

    def leave(self, fence: Fence, run_id: str, attempt: int, outcome: Mapping[str, Any]) -> bool:
        """The gang is gone: record how, give up whatever it holds or was promised. The first outcome stays."""
        return self.leave_all(fence, [(run_id, attempt, outcome)])[0]

    def leave_all(self, fence: Fence, ends: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[bool]:
        """`leave` of each (run, attempt, outcome), in one transaction."""
        now = self._clock.now()
        with self.transaction(at="ledger.leave", fence=fence) as connection:
            return _leave(connection, ends, now=now)

    def requeue(
        self,
        fence: Fence,
        run_id: str,
        attempt: int,
        *,
        evicted: bool,
        infrastructure: bool = False,
        not_before: float | None = None,
        resume_by: float | None = None,
    ) -> bool:
        """Leaving → waiting, with its first submit time; counts an eviction or an infrastructure restart, once.

        With `resume_by` → reserved until then, if there is a place where it is to go on; otherwise that is given up.
        """
        return self.requeue_all(fence, [(run_id, attempt, evicted, infrastructure, not_before, resume_by)])[0]

    def requeue_all(self, fence: Fence, back: Sequence[tuple[Any, ...]]) -> list[bool]:
        """`requeue` of each (the fields of `Back`), at once."""
        now = self._clock.now()
        with self.transaction(at="ledger.requeue", fence=fence) as connection:
            all_back = [Back(*each) for each in back]
            failed = {(each.run_id, each.attempt) for each in all_back if each.infrastructure}
            if failed:
                alive = _alive(connection, [run_id for run_id, _ in failed])
                node_failures.count(connection, fence.pool, _leaving(alive, failed), now=now)
            going_on = resuming.on_their_way(connection, [each.run_id for each in all_back])
            return [_requeue(connection, each, goes_on=each.run_id in going_on, now=now) for each in all_back]

    def end(self, fence: Fence, run_id: str, attempt: int, *, final_state: str) -> bool:
        """Leaving (or waiting) → ended, in the Prefect state `final_state`."""
        return self.end_all(fence, [(run_id, attempt, final_state)])[0]

    def end_all(self, fence: Fence, ends: Sequence[tuple[str, int, str]]) -> list[bool]:
        """`end` of each (run, attempt, final state), in one transaction."""
        now = self._clock.now()
        with self.transaction(at="ledger.end", fence=fence) as connection:
            alive = _alive(connection, [run_id for run_id, *_ in ends])
            going_on = {gang.run_id: gang.attempt for gang in alive if gang.resumes_at is not None}
            over = [run_id for run_id, attempt, _ in ends if going_on.get(run_id) == attempt]
            resuming.give_up(connection, over, now=now)
            lost = [gang for gang in alive if gang.outcome.get("kind") in ALWAYS_THE_MACHINE]
            if failed := _leaving(lost, {(run_id, attempt) for run_id, attempt, _ in ends}):
                node_failures.count(connection, fence.pool, failed, now=now)
            telling = {run_id for run_id, _, state in ends if state not in durations.SAY_NOTHING}
            before = [gang for gang in alive if gang.run_id in telling]
            ended = _end(connection, ends, now=now)
            states = {run_id: state for (run_id, _, state), done in zip(ends, ended, strict=True) if done}
            durations.count(connection, fence.pool, states, [g for g in before if g.run_id in states], now=now)
            return ended


def _alive(connection: sa.Connection, run_ids: Sequence[str]) -> list[Gang]:
    """Those of the gangs that have not ended yet."""
    found: list[Gang] = []
    for some in chunks(sorted(set(run_ids))):
        query = sa.select(*GANG_COLUMNS).where(_gangs.c.run_id.in_(some), _gangs.c.state != GangState.ENDED)
        found += gangs_of(connection.execute(query).all())
    return found


def _leaving(gangs: Iterable[Gang], attempts: Collection[tuple[str, int]]) -> list[Gang]:
    """Those of the gangs of whom one of the (run, attempt) is leaving: who has left that state has been counted."""
    return [gang for gang in gangs if gang.state is GangState.LEAVING and (gang.run_id, gang.attempt) in attempts]


def _known(connection: sa.Connection, run_ids: Collection[str]) -> dict[str, Any]:
    """What is asked of gangs that leave, by run."""
    columns = (
        _gangs.c.run_id, _gangs.c.attempt, _gangs.c.state, _gangs.c.pool, _gangs.c.team, _gangs.c.placement,
        _gangs.c.launched_at, _gangs.c.attained_seconds,
    )  # fmt: skip
    found: dict[str, Any] = {}
    for some in chunks(sorted(set(run_ids))):
        query = sa.select(*columns).where(_gangs.c.run_id.in_(some)).order_by(_gangs.c.run_id).with_for_update()
        found |= {row.run_id: row for row in connection.execute(query)}
    return found


def _holder(gang: Any) -> Holder:
    return Holder(gang.run_id, gang.attempt, gang.pool, gang.team)


def _leave(connection: sa.Connection, ends: Sequence[tuple[str, int, Mapping[str, Any]]], *, now: float) -> list[bool]:
    known = _known(connection, [run_id for run_id, *_ in ends])
    left: dict[str, Mapping[str, Any]] = {}
    news = []
    for run_id, attempt, outcome in ends:
        gang = known.get(run_id)
        is_news = gang is not None and gang.attempt == attempt and gang.state in HOLDING_STATES and run_id not in left
        news.append(is_news)
        if is_news:
            left[run_id] = outcome
    if not left:
        return news
    gangs = [known[run_id] for run_id in left]
    attempts = [(gang.run_id, gang.attempt) for gang in gangs]
    evicting = [(gang.run_id, gang.attempt) for gang in gangs if gang.state == GangState.EVICTING]
    told = evictions.left(connection, evicting, now=now)
    changed = []
    for gang in gangs:
        outcome, attained = left[gang.run_id], gang.attained_seconds
        if outcome.get("kind") == "evicted" and not outcome.get("reason"):
            # The worker that told it may be dead; whoever leads now has only heard that it is gone.
            outcome = {**outcome, "reason": told.get(gang.run_id) or None}
        if gang.launched_at is not None:
            attained += len(Placement.from_json(gang.placement).devices) * max(0.0, now - gang.launched_at)
        changed.append({"known": gang.run_id, "how": dict(outcome), "attained": attained})
    values: dict[str, Any] = {
        "state": GangState.LEAVING,
        "outcome": sa.bindparam("how", type_=_gangs.c.outcome.type),
        "expires_at": resuming.deadline(),
        "attained_seconds": sa.bindparam("attained"),
    }
    connection.execute(sa.update(_gangs).where(_gangs.c.run_id == sa.bindparam("known")).values(**values), changed)
    reservations.release(connection, [_holder(gang) for gang in gangs], now=now, written=left.keys())
    prefetches.withdraw(connection, attempts, now=now)
    return news


def _requeue(connection: sa.Connection, back: Back, *, goes_on: bool, now: float) -> bool:
    columns, run_id, attempt = _gangs.c, back.run_id, back.attempt
    leaving = (columns.run_id == run_id, columns.attempt == attempt, columns.state == GangState.LEAVING)
    if goes_on:
        by = back.resume_by
        if by is not None and resuming.resume(connection, run_id, attempt, expires_at=by, now=now):
            return True
        if connection.execute(sa.select(columns.run_id).where(*leaving)).first() is not None:
            resuming.give_up(connection, [run_id], now=now)
    values: dict[str, Any] = {
        "state": GangState.WAITING,
        "placement": None,
        "launch": {},
        "evictions": columns.evictions + int(back.evicted),
        "infrastructure_restarts": columns.infrastructure_restarts + int(back.infrastructure),
        "not_before": back.not_before,
        "waiting_since": now,
    }
    return connection.execute(sa.update(_gangs).where(*leaving).values(**values)).rowcount == 1


def _end(connection: sa.Connection, ends: Sequence[tuple[str, int, str]], *, now: float) -> list[bool]:
    values = {
        "state": GangState.ENDED,
        "ended_at": now,
        "placement": None,
        "not_before": None,
        "reason_code": None,
        "reason": None,
    }
    first: dict[tuple[str, int], str] = {}
    for run_id, attempt, final_state in ends:
        first.setdefault((run_id, attempt), final_state)
    done: set[tuple[str, int]] = set()
    for final_state in sorted(set(first.values())):
        for some in chunks(sorted(each for each, state in first.items() if state == final_state)):
            over = (
                sa.tuple_(_gangs.c.run_id, _gangs.c.attempt).in_(some),
                _gangs.c.state.in_([GangState.LEAVING, GangState.WAITING]),
            )
            update = sa.update(_gangs).where(*over).values(**values, final_state=final_state)
            rows = connection.execute(update.returning(_gangs.c.run_id, _gangs.c.attempt))
            done |= {(row.run_id, row.attempt) for row in rows}
    news = []
    for run_id, attempt, _ in ends:
        news.append((run_id, attempt) in done)
        done.discard((run_id, attempt))  # who is told twice has ended once
    return news
