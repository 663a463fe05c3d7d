"""Evictions: who was told to leave, for whom, and why. A gang is evicting exactly while it has one open row here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import reservations, resuming, schema
from dsec_blocks.ledger.resuming import Resumption
from dsec_blocks.ledger.rows import chunks
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.gangs import GangState, Placement

_gangs = schema.gangs
_rows = schema.evictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """One notice to one attempt. `for_run` is the gang that needs its devices (itself, when it grows), None for an
    operator's wish or a drain.

    `state` is open until the gang has left, or withdrawn.
    """

    run_id: str
    attempt: int
    for_run: str | None
    why: str
    cost: float | None
    noticed_at: float
    state: str
    closed_at: float | None


class Evictions(Transactions):
    """Telling gangs to leave, and taking that back."""

    def evict(
        self,
        fence: Fence,
        run_ids: Collection[str],
        *,
        why: str,
        for_run: str | None = None,
        costs: Mapping[str, float] | None = None,
        resumption: Resumption | None = None,
    ) -> list[str]:
        """Running and launching gangs become evicting; returns those that did, others are left alone.

        `costs` in device-seconds are for the record. With a `resumption`, that gang (the only one) goes on there once
        it has left, and is left alone if a device of the place is taken.
        """
        now = self._clock.now()
        with self.transaction(at="ledger.evict", fence=fence) as connection:
            if resumption is not None and not resuming.reserve(connection, resumption, now=now):
                return []
            told = notice(
                connection, pool=fence.pool, run_ids=run_ids, for_run=for_run, why=why, costs=costs or {}, now=now
            )
            if resumption is not None:
                resuming.remember(connection, [resumption], now=now)
            return told

    def withdraw_eviction(self, fence: Fence, run_id: str, attempt: int) -> bool:
        """Evicting → what it was before, if it still holds its devices and none is promised to another; else False.

        Where it would have gone on is free again then.
        """
        mine = (_gangs.c.run_id == run_id, _gangs.c.attempt == attempt, _gangs.c.state == GangState.EVICTING)
        with self.transaction(at="ledger.withdraw_eviction", fence=fence) as connection:
            row = connection.execute(sa.select(_gangs.c.placement, _gangs.c.launched_at).where(*mine)).one_or_none()
            if row is None:
                return False
            held = reservations.devices_held(connection, run_id=run_id, attempt=attempt)
            needed = Placement.from_json(row.placement).devices
            if len(held) < len(needed) or reservations.promised(connection, held, but_to=run_id):
                return False
            resuming.give_up(connection, [run_id], now=self._clock.now())
            state = GangState.LAUNCHING if row.launched_at is None else GangState.RUNNING
            connection.execute(sa.update(_gangs).where(*mine).values(state=state))
            close(connection, run_id=run_id, attempt=attempt, state="withdrawn", now=self._clock.now())
            return True

    def evictions(self, pool: str, *, open_only: bool = True) -> list[Eviction]:
        """Evictions of `pool`, oldest first: those in flight, or all there ever were."""
        columns = [column for column in _rows.c if column.name not in ("id", "pool")]
        query = sa.select(*columns).where(_rows.c.pool == pool).order_by(_rows.c.id)
        if open_only:
            query = query.where(_rows.c.state == "open")
        with self.reading() as connection:
            return [Eviction(**row) for row in connection.execute(query).mappings()]

    def preemptors(self, pool: str) -> dict[str, tuple[str, ...]]:
        """Waiting gang → those it was ever evicted for, by id; gangs that were never evicted for another are absent."""
        with self.reading() as connection:
            return evicted_for(connection, _rows.c.pool == pool)

    def evicted_since(self, pool: str, since: float) -> list[tuple[str, str, float, str]]:
        """(run id, team, time of the notice, for which run) of every gang that made way since then, oldest first.

        One that left to grow did so for itself.
        """
        query = (
            sa.select(_rows.c.run_id, _gangs.c.team, _rows.c.noticed_at, _rows.c.for_run)
            .join(_gangs, _gangs.c.run_id == _rows.c.run_id)
            .where(_rows.c.pool == pool, _rows.c.noticed_at >= since)
            .where(_rows.c.for_run.is_not(None), _rows.c.state != "withdrawn")
            .order_by(_rows.c.id)
        )
        with self.reading() as connection:
            return [(row.run_id, row.team, row.noticed_at, row.for_run) for row in connection.execute(query)]


def evicted_for(connection: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, tuple[str, ...]]:
    """`preemptors` of those evictions."""
    mine = sa.and_(_gangs.c.run_id == _rows.c.run_id, _gangs.c.state == GangState.WAITING)
    query = (
        sa.select(_rows.c.run_id, _rows.c.for_run)
        .distinct()
        .join(_gangs, mine)
        .where(which, _rows.c.for_run.is_not(None), _rows.c.state != "withdrawn")
        .order_by(_rows.c.run_id, _rows.c.for_run)
    )
    found: dict[str, tuple[str, ...]] = {}
    for run_id, for_run in connection.execute(query):
        found[run_id] = (*found.get(run_id, ()), for_run)
    return found


def notice(
    connection: sa.Connection,
    *,
    pool: str,
    run_ids: Collection[str],
    for_run: str | None,
    why: str,
    costs: Mapping[str, float],
    now: float,
    whys: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Running and launching gangs among `run_ids` become evicting; returns those that did. `whys` go before `why`."""
    told: list[Any] = []
    for some in chunks(sorted(set(run_ids))):
        leavable = (
            _gangs.c.run_id.in_(some),
            _gangs.c.pool == pool,
            _gangs.c.state.in_([GangState.LAUNCHING, GangState.RUNNING]),
        )
        evicting = sa.update(_gangs).where(*leavable).values(state=GangState.EVICTING)
        told += connection.execute(evicting.returning(_gangs.c.run_id, _gangs.c.attempt)).all()
    rows = [
        {
            "pool": pool,
            "run_id": gang.run_id,
            "attempt": gang.attempt,
            "for_run": for_run,
            "why": whys.get(gang.run_id, why),
            "cost": costs.get(gang.run_id),
            "noticed_at": now,
            "state": "open",
        }
        for gang in sorted(told)
    ]
    if rows:
        connection.execute(sa.insert(_rows), rows)
    return [row["run_id"] for row in rows]


def left(connection: sa.Connection, attempts: Collection[tuple[str, int]], *, now: float) -> dict[str, str]:
    """The evictions in flight of these (run, attempt) are over, since they have left; by run, what each was told."""
    told: dict[str, str] = {}
    for some in chunks(sorted(attempts)):
        mine = (sa.tuple_(_rows.c.run_id, _rows.c.attempt).in_(some), _rows.c.state == "open")
        closed = sa.update(_rows).where(*mine).values(state="left", closed_at=now)
        told |= {row.run_id: row.why for row in connection.execute(closed.returning(_rows.c.run_id, _rows.c.why))}
    return told


def close(connection: sa.Connection, *, run_id: str, attempt: int, state: str, now: float) -> None:
    """The eviction in flight of this attempt, if any, is over."""
    mine = (_rows.c.run_id == run_id, _rows.c.attempt == attempt, _rows.c.state == "open")
    connection.execute(sa.update(_rows).where(*mine).values(state=state, closed_at=now))


def victims_of(connection: sa.Connection, run_id: str) -> list[str]:
    """Gangs with an eviction in flight for `run_id`."""
    for_it = (_rows.c.for_run == run_id, _rows.c.state == "open")
    return list(connection.execute(sa.select(_rows.c.run_id).where(*for_it).order_by(_rows.c.id)).scalars())
