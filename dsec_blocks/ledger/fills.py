"""Who fetches an object for the whole cluster: one lease an object, taken over when its filler no longer beats.

As with a pool's leader no wall clock decides: a node that waits takes over when it has seen the same beat for long
enough on its own monotonic clock, by compare-and-set on exactly the row it saw. A filler that was only stopped finds
the token raised at its next beat. The row stays when the object is filled: it says when it was last used.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.errors import Fenced

_fills = schema.fills
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """An object's row as read; `beat` only counts. `ended`: nobody is at it."""

    key: str
    holder: str
    token: int
    beat: int
    ended: bool
    used_at: float


class FillFence(NamedTuple):
    """A filler's right to an object; void as soon as somebody took over."""

    key: str
    holder: str
    token: int


class Fills(Transactions):
    """The fill leases of all objects."""

    def fills(self, keys: Collection[str] | None = None) -> dict[str, Fill]:
        """The rows of `keys` that exist, or all rows."""
        found: dict[str, Fill] = {}
        wanted = None if keys is None else sorted(set(keys))
        with self.reading() as connection:
            for chunk in (
                [None] if wanted is None else [wanted[i : i + _AT_ONCE] for i in range(0, len(wanted), _AT_ONCE)]
            ):
                query = sa.select(_fills) if chunk is None else sa.select(_fills).where(_fills.c.key.in_(chunk))
                found.update((row["key"], Fill(**row)) for row in connection.execute(query).mappings())
        return found

    def take_fill(self, key: str, holder: str, *, seen: Fill | None) -> FillFence | None:
        """Fill `key` if its row is still as `seen`, has ended, or does not exist; else None.

        Whether the filler that was seen is dead is the caller's judgement.
        """
        columns = _fills.c
        takeable: sa.ColumnElement[bool] = columns.ended
        if seen is not None:
            takeable = sa.or_(takeable, sa.and_(columns.token == seen.token, columns.beat == seen.beat))
        now = self._clock.now()
        taken = {"holder": holder, "token": columns.token + 1, "beat": columns.beat + 1, "ended": False, "used_at": now}
        with self.transaction(at="ledger.fill.take") as connection:
            token = connection.execute(
                sa.update(_fills).where(columns.key == key, takeable).values(**taken).returning(columns.token)
            ).scalar_one_or_none()
            if token is None:
                if connection.execute(sa.select(columns.key).where(columns.key == key)).first() is not None:
                    return None
                first = {"key": key, "holder": holder, "token": 1, "beat": 1, "ended": False, "used_at": now}
                try:
                    with connection.begin_nested():
                        connection.execute(sa.insert(_fills).values(**first))
                except IntegrityError:
                    return None
                token = 1
        return FillFence(key, holder, token)

    def beat_fills(self, fences: Collection[FillFence]) -> list[FillFence]:
        """Say that the filler of these lives; returns those that are no longer its own."""
        lost = []
        with self.transaction(at="ledger.fill.beat") as connection:
            for fence in fences:
                beaten = sa.update(_fills).where(*_mine(fence)).values(beat=_fills.c.beat + 1)
                if connection.execute(beaten).rowcount == 0:
                    lost.append(fence)
        return lost

    def end_fill(self, fence: FillFence) -> None:
        """Give the lease back, filled or not. Raises `Fenced` if somebody else has it."""
        with self.transaction(at="ledger.fill.end") as connection:
            ended = sa.update(_fills).where(*_mine(fence)).values(ended=True, used_at=self._clock.now())
            if connection.execute(ended).rowcount == 0:
                raise Fenced(f"{fence.holder} no longer fills {fence.key[:16]}; another node took over")

    def touch_fills(self, keys: Collection[str]) -> None:
        """These objects were used just now."""
        with self.transaction(at="ledger.fill.touch") as connection:
            for chunk in _chunks(keys):
                connection.execute(sa.update(_fills).where(_fills.c.key.in_(chunk)).values(used_at=self._clock.now()))


def _chunks(keys: Collection[str]) -> list[list[str]]:
    wanted = sorted(set(keys))
    return [wanted[start : start + _AT_ONCE] for start in range(0, len(wanted), _AT_ONCE)]


def _mine(fence: FillFence) -> tuple[sa.ColumnElement[bool], ...]:
    columns = _fills.c
    return (columns.key == fence.key, columns.holder == fence.holder, columns.token == fence.token, ~columns.ended)
