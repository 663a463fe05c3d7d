"""How often attempts have lately failed on each node, for reasons of the machine: placement takes such nodes last.

Counted in the transaction that sends a gang back into the queue, or ends it; see `model.node_failures` for whose fault
it is and how it fades.
"""

from collections import defaultdict
from collections.abc import Iterable

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import upsert
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.node_failures import HALF_LIFE_SECONDS, blamed, decayed

_rows = schema.node_failures

DROPPED_SECONDS = 20 * HALF_LIFE_SECONDS
"""Rows that are older are dropped when the next failure is counted."""


class NodeFailures(Transactions):
    """Reading the counts."""

    def node_failures(self, pool: str, now: float) -> dict[str, float]:
        """Node → its failures, faded to `now`; nodes of which nothing is held are left out."""
        with self.reading() as connection:
            return read(connection, pool, now)


def read(connection: sa.Connection, pool: str, now: float) -> dict[str, float]:
    """The same."""
    rows = connection.execute(sa.select(_rows).where(_rows.c.pool == pool).order_by(_rows.c.node)).all()
    return {row.node: left for row in rows if (left := decayed(row.weight, row.at, now))}


def count(connection: sa.Connection, pool: str, leaving: Iterable[Gang], *, now: float) -> None:
    """These are in state `leaving` after a failure of the machine; the caller's fence keeps others from counting."""
    more: dict[str, float] = defaultdict(float)
    for gang in leaving:
        if gang.placement is not None:
            failed_before = gang.infrastructure_restarts
            for node, weight in blamed(gang.placement, gang.outcome, failed_before=failed_before).items():
                more[node] += weight
    if not more:
        return
    before = read(connection, pool, now)
    connection.execute(sa.delete(_rows).where(_rows.c.pool == pool, _rows.c.at < now - DROPPED_SECONDS))
    values = [
        {"pool": pool, "node": node, "weight": before.get(node, 0.0) + weight, "at": now}
        for node, weight in sorted(more.items())
    ]
    upsert(connection, _rows, values)
