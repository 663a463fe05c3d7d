"""Wishes: what the command line and the sweeps want. They write it down; the pool's leader makes it so."""

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.errors import LedgerError

_wishes = schema.wishes

WISH_KINDS = ("evict", "cancel", "prioritize", "drain", "freeze", "thaw", "reserve", "unreserve", "override", "lift")
STANDING_KINDS = ("drain", "freeze", "reserve", "override")
"""Wishes that stay open for as long as they are to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One wish that nobody has answered yet: who wants what of which run (or, for a drain, of the pool), and why."""

    id: int
    pool: str
    kind: str
    run_id: str | None
    args: dict[str, Any]
    by: str
    why: str
    at: float
    taken_up_at: float | None = None
    """When the leader first acted on it."""


class Wishes(Transactions):
    """Anybody may wish; only the leader fulfils."""

    def wish(self, pool: str, kind: str, run_id: str | None, args: dict[str, Any], *, by: str, why: str) -> int:
        """Write a wish down; returns its number. Raises `LedgerError` for a kind that no leader knows."""
        if kind not in WISH_KINDS:
            raise LedgerError(f"wish {kind!r}: a wish is one of {', '.join(WISH_KINDS)}")
        values = {"pool": pool, "kind": kind, "run_id": run_id, "args": args, "by": by, "why": why}
        with self.transaction(at="ledger.wish") as connection:
            wished = sa.insert(_wishes).values(**values, at=self._clock.now()).returning(_wishes.c.id)
            return int(connection.execute(wished).scalar_one())

    def wishes(self, pool: str) -> list[Wish]:
        """Open wishes of `pool`, oldest first."""
        columns = [column for column in _wishes.c if column.name not in ("fulfilled_at", "outcome")]
        still_open = (_wishes.c.pool == pool, _wishes.c.fulfilled_at.is_(None))
        with self.reading() as connection:
            rows = connection.execute(sa.select(*columns).where(*still_open).order_by(_wishes.c.id)).mappings()
            return [Wish(**row) for row in rows]

    def take_up(self, fence: Fence, wish_id: int, entry: Decision) -> bool:
        """The leader acts on a wish that stands from now on; False if it did so before. Logs `entry` the first time."""
        mine = (_wishes.c.id == wish_id, _wishes.c.pool == fence.pool, _wishes.c.taken_up_at.is_(None))
        with self.transaction(at="ledger.take_up", fence=fence) as connection:
            taken = connection.execute(sa.update(_wishes).where(*mine).values(taken_up_at=self._clock.now()))
            if taken.rowcount == 1:
                connection.execute(sa.insert(schema.decisions).values(**asdict(entry)))
            return taken.rowcount == 1

    def wish_taken_up(self, wish_id: int) -> bool:
        """Whether the leader has acted on the wish, or answered it."""
        columns = (_wishes.c.taken_up_at, _wishes.c.outcome)
        with self.reading() as connection:
            row = connection.execute(sa.select(*columns).where(_wishes.c.id == wish_id)).one_or_none()
        return row is not None and (row.taken_up_at is not None or row.outcome is not None)

    def fulfil(self, fence: Fence, wish_id: int, outcome: str) -> None:
        """Close a wish with what came of it; the first answer stays."""
        mine = (_wishes.c.id == wish_id, _wishes.c.pool == fence.pool, _wishes.c.fulfilled_at.is_(None))
        with self.transaction(at="ledger.fulfil", fence=fence) as connection:
            connection.execute(sa.update(_wishes).where(*mine).values(fulfilled_at=self._clock.now(), outcome=outcome))

    def wish_outcome(self, wish_id: int) -> str | None:
        """What came of a wish, None while it is open: how a command line waits for its answer."""
        with self.reading() as connection:
            return connection.execute(sa.select(_wishes.c.outcome).where(_wishes.c.id == wish_id)).scalar_one_or_none()
