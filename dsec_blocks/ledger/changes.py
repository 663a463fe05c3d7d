"""What has changed since one looked last, so that a leader need not read ten thousand gangs to learn of ten.

Each transaction of a leader raises its pool's `leases.changes` while it holds that row, and every gang that it writes,
or whose devices it moves, bears the number (`gangs.changed`, set by the schema in whatever statement writes the row).
Transactions of one pool follow each other, so whoever has seen number N misses nothing by asking for N and above; N
itself again, because what is written without a fence bears the last number. Whatever nobody told of still shows:
gangs that were deleted in the count of those alive, the rest when everything is read again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.evictions import evicted_for
from dsec_blocks.ledger.reservations import Holding, holdings
from dsec_blocks.ledger.rows import GANG_COLUMNS, chunks, gangs_of
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState

ALIVE = frozenset(GangState) - {GangState.ENDED}

_gangs = schema.gangs
_evictions = schema.evictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Gangs as one state of the ledger has them, with what the ledger knows of each elsewhere."""

    number: int
    """Of the pool's last transaction."""
    gangs: Sequence[Gang]
    """First submitted first."""
    holdings: Mapping[str, tuple[Holding, ...]]
    """By run; gangs that hold and are promised nothing are absent."""
    evicting_for: Mapping[str, str | None]
    """For whom each of them that is being evicted leaves, if for anybody."""
    evicted_for: Mapping[str, tuple[str, ...]]
    """For whom each of them that waits was ever evicted, by id."""
    alive: int
    """How many gangs of the pool have not ended, whether they are among `gangs` or not."""


class Changes(Transactions):
    """Reading them."""

    def whole(self, pool: str) -> Reading:
        """Every gang of `pool` that has not ended."""
        with self.reading() as connection:
            return _whole(connection, pool)

    def news(self, pool: str, since: int) -> Reading:
        """The gangs of `pool`, those that ended too, that were written in or after its transaction `since`."""
        with self.reading() as connection:
            return _news(connection, pool, since)

    def news_and_whole(self, pool: str, since: int) -> tuple[Reading, Reading]:
        """Both, of one state: whoever has applied the first knows the second, or has missed something."""
        with self.reading() as connection:
            return _news(connection, pool, since), _whole(connection, pool)


def change_number(connection: sa.Connection, pool: str) -> int:
    """The number of the pool's transaction, of the one that is open if there is one; 0 before the first."""
    number: int | None = connection.execute(_number(pool)).scalar_one_or_none()
    return number or 0


def _number(pool: str) -> sa.Select[Any]:
    return sa.select(schema.leases.c.changes).where(schema.leases.c.pool == pool)


def _whole(connection: sa.Connection, pool: str) -> Reading:
    number, alive = _standing(connection, pool)
    gangs = _read(connection, _gangs.c.pool == pool, _gangs.c.state.in_(sorted(ALIVE)))
    held: dict[str, list[Holding]] = defaultdict(list)
    expiring = {gang.run_id: gang.expires_at for gang in gangs}
    for holding in holdings(connection, schema.reservations.c.pool == pool, expiring=expiring):
        held[holding.run_id].append(holding)
    return Reading(
        number=number,
        gangs=gangs,
        holdings={run_id: tuple(each) for run_id, each in held.items()},
        evicting_for=_evicting_for(connection, _evictions.c.pool == pool),
        evicted_for=evicted_for(connection, _evictions.c.pool == pool),
        alive=alive,
    )


def _news(connection: sa.Connection, pool: str, since: int) -> Reading:
    gangs = _read(connection, _gangs.c.pool == pool, _gangs.c.changed >= since)
    held: dict[str, list[Holding]] = defaultdict(list)
    evicting_for: dict[str, str | None] = {}
    found: dict[str, tuple[str, ...]] = {}
    for some in chunks([gang.run_id for gang in gangs if gang.state in HOLDING_STATES or gang.resumes_at is not None]):
        for holding in holdings(connection, schema.reservations.c.run_id.in_(some)):
            held[holding.run_id].append(holding)
    for some in chunks([gang.run_id for gang in gangs if gang.state is GangState.EVICTING]):
        evicting_for |= _evicting_for(connection, _evictions.c.run_id.in_(some))
    for some in chunks([gang.run_id for gang in gangs if gang.state is GangState.WAITING and gang.attempt]):
        found |= evicted_for(connection, _evictions.c.run_id.in_(some))
    number, alive = _standing(connection, pool)
    return Reading(
        number=number,
        gangs=gangs,
        holdings={run_id: tuple(each) for run_id, each in held.items()},
        evicting_for=evicting_for,
        evicted_for=found,
        alive=alive,
    )


def _read(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> list[Gang]:
    gangs = gangs_of(connection.execute(sa.select(*GANG_COLUMNS).where(*which)).all())
    gangs.sort(key=attrgetter("submitted_at", "run_id"))  # cheaper than a database that carries whole rows along
    return gangs


def _evicting_for(connection: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, str | None]:
    query = sa.select(_evictions.c.run_id, _evictions.c.for_run).where(which, _evictions.c.state == "open")
    return {row.run_id: row.for_run for row in connection.execute(query)}


def _standing(connection: sa.Connection, pool: str) -> tuple[int, int]:
    """The number of the pool's transaction as `change_number` has it, and how many gangs have not ended."""
    alive = (_gangs.c.pool == pool, _gangs.c.state.in_(sorted(ALIVE)))
    count = sa.select(sa.func.count()).select_from(_gangs).where(*alive).scalar_subquery()
    number, standing = connection.execute(sa.select(_number(pool).scalar_subquery(), count)).one()
    return number or 0, standing
