"""Prefetch orders: which node should begin to fetch which inputs, because a gang has been given a place there.

The order is written in the transaction that reserves and taken back in the one that gives the reservation up, so no
crash parts them. The node's agent reads its orders, fetches, and says how far it is; nobody waits for it: a member
whose inputs are not there fetches them itself. Only the newest attempt of a run has orders.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.gangs import Gang

_rows = schema.prefetches


class PrefetchState(StrEnum):
    """How far a node is with an order; the last three are final."""

    ORDERED = "ordered"
    FETCHING = "fetching"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


OPEN_STATES = (PrefetchState.ORDERED, PrefetchState.FETCHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """One order to one node, for one attempt of a run."""

    run_id: str
    attempt: int
    node: str
    pool: str
    addresses: tuple[str, ...]
    ordered_at: float
    state: PrefetchState
    began_at: float | None = None
    """When the node's agent first said that it fetches."""
    ended_at: float | None = None
    updated_at: float | None = None
    bytes_done: int = 0
    """Bytes of the inputs that are on the node, those that were there before included."""
    bytes_total: int = 0
    error: str | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """Seconds of its stages as the node measured them: `fetch`, `verify`."""

    @property
    def is_open(self) -> bool:
        """Whether the node still has something to do for it."""
        return self.state in OPEN_STATES


class Prefetches(Transactions):
    """The node's side of it; orders are written as part of a gang's own transitions."""

    def prefetches_for(self, node: str) -> list[Prefetch]:
        """What `node` should be fetching, oldest order first. What is not here (any more) is to be stopped."""
        mine = (_rows.c.node == node, _rows.c.state.in_(OPEN_STATES))
        return self._prefetches(*mine)

    def prefetches_of(self, run_id: str) -> list[Prefetch]:
        """The orders of the run's newest attempt that had any, by node."""
        return self._prefetches(_rows.c.run_id == run_id)

    def prefetch_progress(
        self,
        node: str,
        run_id: str,
        attempt: int,
        *,
        bytes_done: int,
        bytes_total: int,
        state: PrefetchState,
        at: float,
        error: str | None = None,
        figures: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """How far `node` is, and what it has measured. False: nobody wants it any more, or it ended before; so stop."""
        mine = (_rows.c.node == node, _rows.c.run_id == run_id, _rows.c.attempt == attempt)
        values = progress(
            state, bytes_done=bytes_done, bytes_total=bytes_total, error=error, figures=figures, at=at
        ) | {"updated_at": at, "began_at": sa.func.coalesce(_rows.c.began_at, at)}
        with self.transaction(at="ledger.prefetch.progress") as connection:
            wanted = sa.update(_rows).where(*mine, _rows.c.state.in_(OPEN_STATES))
            return connection.execute(wanted.values(**values)).rowcount == 1

    def _prefetches(self, *conditions: sa.ColumnElement[bool]) -> list[Prefetch]:
        query = sa.select(_rows).where(*conditions).order_by(_rows.c.ordered_at, _rows.c.run_id, _rows.c.node)
        with self.reading() as connection:
            return [prefetch_of(dict(row)) for row in connection.execute(query).mappings()]


def prefetch_of(row: Mapping[str, Any]) -> Prefetch:
    """The row as a record."""
    typed = {
        "addresses": tuple(row["addresses"]),
        "state": PrefetchState(row["state"]),
        "figures": row["figures"] or {},
    }
    return Prefetch(**{**row, **typed})


def progress(
    state: PrefetchState,
    *,
    bytes_done: int,
    bytes_total: int,
    error: str | None,
    figures: Mapping[str, float],
    at: float,
) -> dict[str, Any]:
    """What a row says once its node is so far."""
    return {
        "state": state,
        "bytes_done": bytes_done,
        "bytes_total": bytes_total,
        "error": error,
        "figures": dict(figures),
        "ended_at": None if state in OPEN_STATES else at,
    }


def order(connection: sa.Connection, gangs: Sequence[Gang], *, now: float) -> None:
    """Tell every node of each gang's placement to fetch its inputs; orders of earlier attempts go."""
    for some in chunks([gang.run_id for gang in gangs if gang.attempt > 1]):
        connection.execute(sa.delete(_rows).where(_rows.c.run_id.in_(some)))
    rows = [
        {
            "run_id": gang.run_id,
            "attempt": gang.attempt,
            "node": node,
            "pool": gang.pool,
            "addresses": list(gang.request.inputs),
            "ordered_at": now,
            "state": PrefetchState.ORDERED,
            "bytes_done": 0,
            "bytes_total": 0,
        }
        for gang in gangs
        if gang.request.inputs and gang.placement is not None
        for node in sorted({member.node for member in gang.placement.members})
    ]
    if rows:
        connection.execute(sa.insert(_rows), rows)


def withdraw(connection: sa.Connection, attempts: Collection[tuple[str, int]], *, now: float) -> None:
    """What the nodes of these (run, attempt) have not fetched yet, nobody wants any more."""
    withdrawn = {"state": PrefetchState.WITHDRAWN, "ended_at": now, "updated_at": now}
    for some in chunks(sorted(attempts)):
        mine = (sa.tuple_(_rows.c.run_id, _rows.c.attempt).in_(some), _rows.c.state.in_(OPEN_STATES))
        connection.execute(sa.update(_rows).where(*mine).values(**withdrawn))


def forget(connection: sa.Connection, run_ids: Collection[str]) -> None:
    """The runs are forgotten, and so are their orders."""
    connection.execute(sa.delete(_rows).where(_rows.c.run_id.in_(run_ids)))
