"""Usage: device-seconds that each team has held, charged from the admission to the instant of the release.

Each held device remembers until when it has been charged, so that neither a crash between two accruals nor a release
between them loses or doubles a second.
"""

from collections import defaultdict

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Fence, Transactions

_usage = schema.usage
_rows = schema.reservations


class Usage(Transactions):
    """What teams have used."""

    def usage(self, pool: str) -> dict[str, float]:
        """Device-seconds by team, since the ledger began."""
        query = sa.select(_usage.c.team, _usage.c.device_seconds).where(_usage.c.pool == pool)
        with self.reading() as connection:
            return {row.team: row.device_seconds for row in connection.execute(query.order_by(_usage.c.team))}

    def accrue(self, fence: Fence, now: float) -> None:
        """Charge every held device up to `now`; a wall clock that went back charges nothing and starts anew."""
        held = sa.and_(_rows.c.pool == fence.pool, _rows.c.turn == 0)
        with self.reading() as connection:
            if connection.execute(sa.select(_rows.c.device).where(held).limit(1)).first() is None:
                return
        by_team: dict[str, float] = defaultdict(float)
        with self.transaction(at="ledger.accrue", fence=fence) as connection:
            query = sa.select(schema.gangs.c.team, _rows.c.charged_until).join_from(_rows, schema.gangs).where(held)
            for row in connection.execute(query):
                by_team[row.team] += max(0.0, now - row.charged_until)
            connection.execute(sa.update(_rows).where(held).values(charged_until=now))
            for team, device_seconds in by_team.items():
                charge(connection, pool=fence.pool, team=team, device_seconds=device_seconds)


def charge(connection: sa.Connection, *, pool: str, team: str, device_seconds: float) -> None:
    """Add to what `team` has used; the caller's fence keeps others from adding at the same time."""
    mine = (_usage.c.pool == pool, _usage.c.team == team)
    more = sa.update(_usage).where(*mine).values(device_seconds=_usage.c.device_seconds + device_seconds)
    if connection.execute(more).rowcount == 0:
        connection.execute(sa.insert(_usage).values(pool=pool, team=team, device_seconds=device_seconds))
