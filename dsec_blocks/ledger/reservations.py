"""Reservations: which gang holds a device, and which one it is promised to next.

A row is `(device, turn)` with that pair as its key, so holding a device twice is impossible rather than forbidden.
Turn 0 holds the device, turn 1 is promised behind it and becomes turn 0 in the transaction that deletes turn 0.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks, touch
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.ledger.usage import charge, models_of
from dsec_blocks.model.bulk import builder, nothing_is_garbage

_rows = schema.reservations
_gangs = schema.gangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One device of one gang. `state` is reserved until the gang's user code runs, then bound."""

    device: str
    turn: int
    run_id: str
    attempt: int
    node: str
    state: str
    expires_at: float | None


_holding = builder(Holding)


class Reservations(Transactions):
    """Reading them; they are written only as part of a gang's own transitions."""

    def holders(self, pool: str) -> list[Holding]:
        """Every reservation of `pool`, by device and turn."""
        with self.reading() as connection:
            return holdings(connection, _rows.c.pool == pool)


def holdings(
    connection: sa.Connection, which: sa.ColumnElement[bool], *, expiring: Mapping[str, float | None] | None = None
) -> list[Holding]:
    """Those reservations, by device and turn. `expiring` says when each gang's expire, where that is known already."""
    columns = (_rows.c.device, _rows.c.turn, _rows.c.run_id, _rows.c.attempt, _rows.c.node, _rows.c.state)
    in_order = (_rows.c.device, _rows.c.turn)
    if expiring is not None:
        held = connection.execute(sa.select(*columns).where(which).order_by(*in_order)).all()
        if all(row.run_id in expiring for row in held):
            with nothing_is_garbage():
                return [_holding(*row, expiring[row.run_id]) for row in held]
    query = sa.select(*columns, _gangs.c.expires_at).join_from(_rows, _gangs).where(which)
    rows = connection.execute(query.order_by(*in_order)).all()
    with nothing_is_garbage():
        return [_holding(*row) for row in rows]


def bind(connection: sa.Connection, attempts: Sequence[tuple[str, int]]) -> None:
    """The user code of these (run, attempt) runs: their reservations no longer expire."""
    for some in chunks(sorted(attempts)):
        mine = sa.tuple_(_rows.c.run_id, _rows.c.attempt).in_(some)
        connection.execute(sa.update(_rows).where(mine).values(state="bound"))


class Holder(NamedTuple):
    """An attempt that may hold devices, and whom they are charged to."""

    run_id: str
    attempt: int
    pool: str
    team: str


def release(
    connection: sa.Connection, holders: Collection[Holder], *, now: float, written: Collection[str] = ()
) -> None:
    """Delete all that these hold or were promised, charge their teams up to now, and let those behind them move up.

    `written` are gangs whose own rows this transaction writes anyway: whoever asks for news hears of them.
    """
    by_attempt = {(each.run_id, each.attempt): each for each in holders}
    gone: list[Any] = []
    for some in chunks(sorted(by_attempt)):
        mine = sa.tuple_(_rows.c.run_id, _rows.c.attempt).in_(some)
        columns = (_rows.c.run_id, _rows.c.attempt, _rows.c.device, _rows.c.turn, _rows.c.charged_until)
        gone += connection.execute(sa.delete(_rows).where(mine).returning(*columns)).all()
    if not gone:
        return
    held = [row for row in gone if row.turn == 0]
    moved = {row.run_id for row in gone}
    for some in chunks(sorted(row.device for row in held)):
        behind = (_rows.c.device.in_(some), _rows.c.turn == 1)
        up = sa.update(_rows).where(*behind).values(turn=0, charged_until=now).returning(_rows.c.run_id)
        moved |= set(connection.execute(up).scalars())
    touch(connection, moved - set(written))
    for pool in sorted({each.pool for each in holders}):
        here = [(row, by_attempt[row.run_id, row.attempt]) for row in held]
        here = [(row, holder) for row, holder in here if holder.pool == pool]
        models = models_of(connection, pool, [row.device for row, _ in here])
        used: dict[tuple[str, str], float] = defaultdict(float)
        for row, holder in here:
            used[holder.team, models.get(row.device, "")] += max(0.0, now - row.charged_until)
        charge(connection, pool, used)


def devices_held(connection: sa.Connection, *, run_id: str, attempt: int) -> list[str]:
    """Devices that the gang holds now (turn 0)."""
    mine = (_rows.c.run_id == run_id, _rows.c.attempt == attempt, _rows.c.turn == 0)
    return list(connection.execute(sa.select(_rows.c.device).where(*mine)).scalars())


def promised(connection: sa.Connection, devices: Collection[str], *, but_to: str = "") -> bool:
    """Whether any of these devices is promised to a gang other than `but_to`."""
    behind = (_rows.c.device.in_(devices), _rows.c.turn == 1, _rows.c.run_id != but_to)
    return connection.execute(sa.select(_rows.c.device).where(*behind).limit(1)).first() is not None
