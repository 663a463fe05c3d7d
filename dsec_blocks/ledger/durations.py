"""How long the pool's runs have lasted: a few of the newest by deployment and shape, by team, and in all.

Written in the transaction that ends a run. What a run is expected to last is read when it comes, and again when it is
admitted, and is kept in its row: an estimate that moved with every end would make all records of the planner new.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks, upsert
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.durations import after, expected_seconds, histories_of
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.requests import Kind

_rows = schema.durations

FORGOTTEN_SECONDS = 180 * 86400.0
"""A history that no run was added to for so long is forgotten when the next begins."""
SAY_NOTHING = frozenset({"Cancelled", "Crashed", "Deleted", "Rescheduled", "Suspended"})
"""Final states of runs that did not last as long as they would have."""


class Durations(Transactions):
    """Reading the histories."""

    def durations(self, pool: str) -> dict[str, list[float]]:
        """Seconds by history, oldest first in each."""
        with self.reading() as connection:
            rows = connection.execute(sa.select(_rows.c.history, _rows.c.seconds).where(_rows.c.pool == pool))
            return {row.history: row.seconds for row in rows}


def read(connection: sa.Connection, pool: str, names: Collection[str]) -> dict[str, list[float]]:
    """Those of the histories that there are."""
    found: dict[str, list[float]] = {}
    for some in chunks(sorted(names)):
        mine = (_rows.c.pool == pool, _rows.c.history.in_(some))
        found |= {row.history: row.seconds for row in connection.execute(sa.select(_rows).where(*mine))}
    return found


def expectations(connection: sa.Connection, pool: str, gangs: Sequence[Gang]) -> dict[str, float | None]:
    """By run: how long each is expected to last, from its first start."""
    names = {gang.run_id: histories_of(gang.deployment, gang.team, gang.request) for gang in gangs}
    histories = read(connection, pool, {name for some in names.values() for name in some})
    return {run_id: expected_seconds(some, histories) for run_id, some in names.items()}


def count(connection: sa.Connection, pool: str, ended: Mapping[str, str], gangs: Sequence[Gang], *, now: float) -> None:
    """These have ended, each in the final state that `ended` says; the caller's fence keeps others from counting."""
    lasted: dict[str, list[float]] = defaultdict(list)
    for gang in gangs:
        devices = len(gang.placement.devices) if gang.placement is not None else gang.request.devices
        untold = ended[gang.run_id] in SAY_NOTHING or gang.lifted or gang.request.kind is Kind.INFERENCE
        if untold or not devices or not gang.attained_seconds:
            continue
        for name in histories_of(gang.deployment, gang.team, gang.request):
            lasted[name].append(gang.attained_seconds / devices)
    if not lasted:
        return
    histories = read(connection, pool, lasted)
    rows = []
    for name, seconds in sorted(lasted.items()):
        history: Sequence[float] = histories.get(name, ())
        for each in seconds:
            history = after(history, each)
        rows.append({"pool": pool, "history": name, "seconds": history, "at": now})
    upsert(connection, _rows, rows)
    if len(histories) < len(lasted):
        old = (_rows.c.pool == pool, _rows.c.at < now - FORGOTTEN_SECONDS)
        connection.execute(sa.delete(_rows).where(*old))
