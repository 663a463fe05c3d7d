"""Prefetches that somebody asked for by hand, of nodes of their choice: a command, or a flow.

Beside the leader's own orders, and read by the same agents; but no gang stands behind them, so whoever asked watches
them, takes them back, or forgets about them. What has ended stays for a week, for those who look later.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.prefetches import OPEN_STATES, Prefetch, PrefetchState, prefetch_of, progress
from dsec_blocks.ledger.transaction import Transactions

_rows = schema.prefetch_asks

KEEP_SECONDS = 7 * 24 * 3600.0


class PrefetchAsks(Transactions):
    """Asked for, carried out by the nodes' agents, watched by who asked."""

    def ask_prefetch(self, addresses: Sequence[str], nodes: Collection[str], *, by: str) -> str:
        """Ask `nodes` to fetch; the name under which the ask is found again."""
        name, now = f"ask-{uuid4().hex[:12]}", self._clock.now()
        row = {"name": name, "addresses": list(addresses), "by": by, "ordered_at": now, "state": PrefetchState.ORDERED}
        with self.transaction(at="ledger.prefetch.ask") as connection:
            connection.execute(sa.delete(_rows).where(_rows.c.ended_at < now - KEEP_SECONDS))
            connection.execute(
                sa.insert(_rows), [{**row, "node": node, "bytes_done": 0, "bytes_total": 0} for node in nodes]
            )
        return name

    def asked_prefetches(self, node: str) -> list[Prefetch]:
        """What `node` should be fetching because somebody asked, oldest first; `run_id` is the ask's name."""
        return self._asked(_rows.c.node == node, _rows.c.state.in_(OPEN_STATES))

    def prefetch_ask(self, name: str) -> list[Prefetch]:
        """One ask, by node."""
        return self._asked(_rows.c.name == name)

    def withdraw_ask(self, name: str) -> int:
        """What its nodes have not fetched yet, nobody wants any more; returns how many nodes that stops."""
        now = self._clock.now()
        withdrawn = {"state": PrefetchState.WITHDRAWN, "ended_at": now}
        with self.transaction(at="ledger.prefetch.take_back") as connection:
            mine = (_rows.c.name == name, _rows.c.state.in_(OPEN_STATES))
            return connection.execute(sa.update(_rows).where(*mine).values(**withdrawn)).rowcount

    def asked_progress(
        self,
        node: str,
        name: str,
        *,
        bytes_done: int,
        bytes_total: int,
        state: PrefetchState,
        at: float,
        error: str | None = None,
        figures: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """How far `node` is. False: nobody wants it any more (or it has ended before), so stop."""
        values = progress(state, bytes_done=bytes_done, bytes_total=bytes_total, error=error, figures=figures, at=at)
        with self.transaction(at="ledger.prefetch.asked_progress") as connection:
            wanted = (_rows.c.node == node, _rows.c.name == name, _rows.c.state.in_(OPEN_STATES))
            return connection.execute(sa.update(_rows).where(*wanted).values(**values)).rowcount == 1

    def _asked(self, *conditions: sa.ColumnElement[bool]) -> list[Prefetch]:
        query = sa.select(_rows).where(*conditions).order_by(_rows.c.ordered_at, _rows.c.name, _rows.c.node)
        with self.reading() as connection:
            return [_prefetch_of(dict(row)) for row in connection.execute(query).mappings()]


def _prefetch_of(row: Mapping[str, Any]) -> Prefetch:
    told = {name: value for name, value in row.items() if name not in ("name", "by")}
    return prefetch_of({**told, "run_id": row["name"], "attempt": 0, "pool": ""})
