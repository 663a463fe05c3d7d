"""Who leads a pool: one lease row, a token that fences, and an election that trusts no wall clock.

The leader raises `beat` about each second. A standby that has seen the same beat for the time to live *on its own
monotonic clock* takes over by compare-and-set on exactly the row it saw. A wall clock that jumps changes nothing, and
a leader that merely slept finds the token raised and is `Fenced` at its first write.
"""

from dataclasses import dataclass, fields

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import Fenced

_leases = schema.leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A pool's lease as read: `beat` only counts, it is no time."""

    pool: str
    holder: str
    token: int
    beat: int
    released: bool


_LEASE = tuple(_leases.c[field.name] for field in fields(Lease))


class Leadership(Transactions):
    """The lease of each pool."""

    def lease(self, pool: str) -> Lease | None:
        """The lease of `pool`, None if nobody ever led it."""
        with self.reading() as connection:
            row = connection.execute(sa.select(*_LEASE).where(_leases.c.pool == pool)).mappings().one_or_none()
        return None if row is None else Lease(**row)

    def take_lease(self, pool: str, holder: str, *, seen: Lease | None) -> Fence | None:
        """Lead `pool` if its lease is still as `seen`, is released, or does not exist; else None.

        Whether the leader that was seen is dead is the caller's judgement: see `Election`.
        """
        columns = _leases.c
        takeable: sa.ColumnElement[bool] = columns.released
        if seen is not None:
            takeable = sa.or_(takeable, sa.and_(columns.token == seen.token, columns.beat == seen.beat))
        taken = {"holder": holder, "token": columns.token + 1, "beat": columns.beat + 1, "released": False}
        with self.transaction(at="ledger.take_lease") as connection:
            token = connection.execute(
                sa.update(_leases).where(columns.pool == pool, takeable).values(**taken).returning(columns.token)
            ).scalar_one_or_none()
            if token is None:
                if connection.execute(sa.select(columns.pool).where(columns.pool == pool)).first() is not None:
                    return None
                first = {"pool": pool, "holder": holder, "token": 1, "beat": 1, "released": False}
                try:
                    with connection.begin_nested():
                        connection.execute(sa.insert(_leases).values(**first))
                except IntegrityError:
                    return None
                token = 1
        return Fence(pool, holder, token)

    def beat(self, fence: Fence) -> None:
        """Say that the leader lives. Raises `Fenced` if it no longer leads."""
        columns = _leases.c
        with self.transaction(at="ledger.beat", fence=fence) as connection:
            connection.execute(sa.update(_leases).where(columns.pool == fence.pool).values(beat=columns.beat + 1))

    def resign(self, fence: Fence) -> None:
        """Give the lease back, so that a standby need not wait; nothing to do if it is somebody else's already."""
        mine = (_leases.c.pool == fence.pool, _leases.c.holder == fence.holder, _leases.c.token == fence.token)
        with self.transaction(at="ledger.resign") as connection:
            connection.execute(sa.update(_leases).where(*mine).values(released=True))


class Election:
    """One candidate for a pool; call `step` about once a second. `holder` must be unique to the process."""

    def __init__(self, ledger: Leadership, pool: str, holder: str, ttl_seconds: float, clock: Clock) -> None:
        self._ledger = ledger
        self._pool = pool
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._fence: Fence | None = None
        self._seen: Lease | None = None
        self._seen_since = 0.0

    @property
    def fence(self) -> Fence | None:
        """What the last step returned."""
        return self._fence

    def step(self) -> Fence | None:
        """Beat as the leader, or look whether the lease can be taken; the fence if this candidate leads now.

        Raises `LedgerError` if the database fails; the candidate then keeps what it was, and the next step tells.
        """
        if self._fence is not None:
            try:
                self._ledger.beat(self._fence)
                return self._fence
            except Fenced:
                self._fence = self._seen = None
        lease = self._ledger.lease(self._pool)
        if lease is None or lease.released:
            self._fence = self._ledger.take_lease(self._pool, self._holder, seen=lease)
        elif lease != self._seen:
            self._seen, self._seen_since = lease, self._clock.monotonic()
        elif self._clock.monotonic() - self._seen_since >= self._ttl_seconds:
            self._fence = self._ledger.take_lease(self._pool, self._holder, seen=lease)
            self._seen = None
        return self._fence

    def resign(self) -> None:
        """Stop leading, if this candidate leads."""
        if self._fence is not None:
            fence, self._fence = self._fence, None
            self._ledger.resign(fence)
