"""Reservations: which gang holds a device, and which one it is promised to next.

A row is `(device, turn)` with that pair as its key, so holding a device twice is impossible rather than forbidden.
Turn 0 holds the device, turn 1 is promised behind it and becomes turn 0 in the transaction that deletes turn 0.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import touch
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
    mine = (_rows.c.run_id == sa.bindparam("run"), _rows.c.attempt == sa.bindparam("of_attempt"))
    if attempts:
        rows = [{"run": run_id, "of_attempt": attempt} for run_id, attempt in attempts]
        connection.execute(sa.update(_rows).where(*mine).values(state="bound"), rows)


def release(connection: sa.Connection, *, pool: str, team: str, run_id: str, attempt: int, now: float) -> None:
    """Delete all that the gang holds or was promised, charge its team up to now, and let those behind it move up."""
    mine = (_rows.c.run_id == run_id, _rows.c.attempt == attempt)
    gone = connection.execute(
        sa.delete(_rows).where(*mine).returning(_rows.c.device, _rows.c.turn, _rows.c.charged_until)
    ).all()
    held = [row for row in gone if row.turn == 0]
    if not held:
        touch(connection, {run_id} if gone else ())
        return
    behind = (_rows.c.device.in_([row.device for row in held]), _rows.c.turn == 1)
    up = sa.update(_rows).where(*behind).values(turn=0, charged_until=now).returning(_rows.c.run_id)
    touch(connection, {run_id, *connection.execute(up).scalars()})
    models = models_of(connection, pool, [row.device for row in held])
    by_model: dict[str, float] = defaultdict(float)
    for row in held:
        by_model[models.get(row.device, "")] += max(0.0, now - row.charged_until)
    for model, device_seconds in by_model.items():
        charge(connection, pool=pool, team=team, model=model, device_seconds=device_seconds)


def devices_held(connection: sa.Connection, *, run_id: str, attempt: int) -> list[str]:
    """Devices that the gang holds now (turn 0)."""
    mine = (_rows.c.run_id == run_id, _rows.c.attempt == attempt, _rows.c.turn == 0)
    return list(connection.execute(sa.select(_rows.c.device).where(*mine)).scalars())


def promised(connection: sa.Connection, devices: Collection[str], *, but_to: str = "") -> bool:
    """Whether any of these devices is promised to a gang other than `but_to`."""
    behind = (_rows.c.device.in_(devices), _rows.c.turn == 1, _rows.c.run_id != but_to)
    return connection.execute(sa.select(_rows.c.device).where(*behind).limit(1)).first() is not None
