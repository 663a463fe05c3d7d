"""How a gang leaves: devices first, then the outcome, then (once Prefect knows) back into the queue or to its end, or
onwards to where it is to go on (`resuming`).

`leaving` is the outbox: the outcome is durable, the Prefect state is still to be written, and a leader that restarts
finds the row and writes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from dsec_blocks.ledger import durations, evictions, node_failures, prefetches, reservations, resuming, schema
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
            return [_release(connection, run_id, attempt, now=now) for run_id, attempt in attempts]

    def leave(self, fence: Fence, run_id: str, attempt: int, outcome: Mapping[str, Any]) -> bool:
        """The gang is gone: record how, give up whatever it holds or was promised. The first outcome stays."""
        return self.leave_all(fence, [(run_id, attempt, outcome)])[0]

    def leave_all(self, fence: Fence, ends: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[bool]:
        """`leave` of each (run, attempt, outcome), in one transaction."""
        now = self._clock.now()
        with self.transaction(at="ledger.leave", fence=fence) as connection:
            return [_leave(connection, *end, now=now) for end in ends]

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
            failed = [(each.run_id, each.attempt) for each in all_back if each.infrastructure]
            if failed:
                node_failures.count(connection, fence.pool, failed, now=now)
            going_on = resuming.on_their_way(connection, [each.run_id for each in all_back])
            return [_requeue(connection, each, goes_on=each.run_id in going_on, now=now) for each in all_back]

    def end(self, fence: Fence, run_id: str, attempt: int, *, final_state: str) -> bool:
        """Leaving (or waiting) → ended, in the Prefect state `final_state`."""
        return self.end_all(fence, [(run_id, attempt, final_state)])[0]

    def end_all(self, fence: Fence, ends: Sequence[tuple[str, int, str]]) -> list[bool]:
        """`end` of each (run, attempt, final state), in one transaction."""
        now = self._clock.now()
        with self.transaction(at="ledger.end", fence=fence) as connection:
            going_on = resuming.on_their_way(connection, [run_id for run_id, *_ in ends])
            over = [run_id for run_id, attempt, _ in ends if going_on.get(run_id) == attempt]
            resuming.give_up(connection, over, now=now)
            alive = _alive(connection, [run_id for run_id, *_ in ends])
            lost = {gang.run_id for gang in alive if gang.outcome.get("kind") in ALWAYS_THE_MACHINE}
            if failed := [(run_id, attempt) for run_id, attempt, _ in ends if run_id in lost]:
                node_failures.count(connection, fence.pool, failed, now=now)
            telling = {run_id for run_id, _, state in ends if state not in durations.SAY_NOTHING}
            before = [gang for gang in alive if gang.run_id in telling]
            ended = [_end(connection, *end, now=now) for end in ends]
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


def _release(connection: sa.Connection, run_id: str, attempt: int, *, now: float) -> bool:
    gang = connection.execute(
        sa.select(_gangs.c.pool, _gangs.c.team).where(_gangs.c.run_id == run_id, _gangs.c.attempt == attempt)
    ).one_or_none()
    if gang is None:
        return False
    reservations.release(connection, pool=gang.pool, team=gang.team, run_id=run_id, attempt=attempt, now=now)
    return True


def _leave(connection: sa.Connection, run_id: str, attempt: int, outcome: Mapping[str, Any], *, now: float) -> bool:
    if outcome.get("kind") == "evicted" and not outcome.get("reason"):
        # The worker that told it may be dead; whoever leads now has only heard that it is gone.
        outcome = {**outcome, "reason": evictions.told(connection, run_id=run_id, attempt=attempt)}
    gang = connection.execute(
        sa.update(_gangs)
        .where(
            _gangs.c.run_id == run_id,
            _gangs.c.attempt == attempt,
            _gangs.c.state.in_(sorted(HOLDING_STATES)),
        )
        .values(state=GangState.LEAVING, outcome=dict(outcome), expires_at=resuming.deadline())
        .returning(_gangs.c.pool, _gangs.c.team, _gangs.c.placement, _gangs.c.launched_at)
    ).one_or_none()
    if gang is None:
        return False
    if gang.launched_at is not None:
        had = len(Placement.from_json(gang.placement).devices) * max(0.0, now - gang.launched_at)
        attained = {"attained_seconds": _gangs.c.attained_seconds + had}
        connection.execute(sa.update(_gangs).where(_gangs.c.run_id == run_id).values(**attained))
    reservations.release(connection, pool=gang.pool, team=gang.team, run_id=run_id, attempt=attempt, now=now)
    evictions.close(connection, run_id=run_id, attempt=attempt, state="left", now=now)
    prefetches.withdraw(connection, run_id=run_id, attempt=attempt, now=now)
    return True


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


def _end(connection: sa.Connection, run_id: str, attempt: int, final_state: str, *, now: float) -> bool:
    values = {
        "state": GangState.ENDED,
        "final_state": final_state,
        "ended_at": now,
        "placement": None,
        "not_before": None,
        "reason_code": None,
        "reason": None,
    }
    over = (
        _gangs.c.run_id == run_id,
        _gangs.c.attempt == attempt,
        _gangs.c.state.in_([GangState.LEAVING, GangState.WAITING]),
    )
    return connection.execute(sa.update(_gangs).where(*over).values(**values)).rowcount == 1
