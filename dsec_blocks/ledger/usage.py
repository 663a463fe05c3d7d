"""Usage: device-seconds that each team has held, by GPU model, charged from admission to the instant of release.

Each held device remembers until when it has been charged, so that neither a crash between two accruals nor a release
between them loses or doubles a second. Beside the sum that only grows stands one that decays: what was charged since
the last accrual is folded into it, so a release need not know the half-life. A GPU model's weight is applied by
whoever reads, so that a new weight counts for the past as well.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import inf

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks, insert_or
from dsec_blocks.ledger.transaction import Fence, Transactions

_usage = schema.usage
_rows = schema.reservations
_devices = schema.devices


class Usage(Transactions):
    """What teams have used."""

    def usage(self, pool: str) -> dict[str, float]:
        """Device-seconds by team, since the ledger began."""
        total = sa.func.sum(_usage.c.device_seconds)
        query = sa.select(_usage.c.team, total.label("total")).where(_usage.c.pool == pool).group_by(_usage.c.team)
        with self.reading() as connection:
            return {row.team: row.total for row in connection.execute(query.order_by(_usage.c.team))}

    def decayed_usage(
        self, pool: str, now: float, *, half_life_seconds: float, model_weights: Mapping[str, float] = {}
    ) -> dict[str, float]:
        """Device-seconds by team as they count at `now`: halved each half-life, times the weight of the GPU model."""
        with self.reading() as connection:
            rows = connection.execute(sa.select(_usage).where(_usage.c.pool == pool).order_by(_usage.c.team)).all()
        found: dict[str, float] = defaultdict(float)
        for row in rows:
            left = row.decayed * _left(now - row.decayed_at, half_life_seconds) + row.device_seconds - row.folded
            found[row.team] += left * model_weights.get(row.model, 1.0)
        return dict(found)

    def accrue(self, fence: Fence, now: float, *, half_life_seconds: float = inf) -> None:
        """Charge every held device up to `now`; a wall clock that went back charges nothing and starts anew."""
        held = sa.and_(_rows.c.pool == fence.pool, _rows.c.turn == 0)
        with self.reading() as connection:
            if connection.execute(sa.select(_rows.c.device).where(held).limit(1)).first() is None:
                return
        by_team: dict[tuple[str, str], float] = defaultdict(float)
        with self.transaction(at="ledger.accrue", fence=fence) as connection:
            of_device = sa.and_(_devices.c.pool == _rows.c.pool, _devices.c.uuid == _rows.c.device)
            query = (
                sa.select(schema.gangs.c.team, _devices.c.model, _rows.c.charged_until)
                .select_from(_rows)
                .join(schema.gangs)
                .outerjoin(_devices, of_device)
                .where(held)
            )
            for row in connection.execute(query):
                by_team[row.team, row.model or ""] += max(0.0, now - row.charged_until)
            connection.execute(sa.update(_rows).where(held).values(charged_until=now))
            charge(connection, fence.pool, by_team)
            _fold(connection, fence.pool, now, half_life_seconds)


def charge(connection: sa.Connection, pool: str, device_seconds: Mapping[tuple[str, str], float]) -> None:
    """Add to what each (team, model) has used, a team's first use too."""
    nothing = {"decayed": 0.0, "folded": 0.0, "decayed_at": 0.0}
    rows = [
        {"pool": pool, "team": team, "model": model, "device_seconds": more, **nothing}
        for (team, model), more in sorted(device_seconds.items())
    ]
    if rows:
        insert = insert_or(connection, _usage)
        sum_of_both = {"device_seconds": _usage.c.device_seconds + insert.excluded.device_seconds}
        key = [column.name for column in _usage.primary_key]
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_=sum_of_both), rows)


def models_of(connection: sa.Connection, pool: str, devices: Collection[str]) -> dict[str, str]:
    """GPU model by device, of those that the pool still has."""
    found: dict[str, str] = {}
    for some in chunks(sorted(devices)):
        mine = (_devices.c.pool == pool, _devices.c.uuid.in_(some))
        found.update(
            (r.uuid, r.model) for r in connection.execute(sa.select(_devices.c.uuid, _devices.c.model).where(*mine))
        )
    return found


def _fold(connection: sa.Connection, pool: str, now: float, half_life_seconds: float) -> None:
    for row in connection.execute(sa.select(_usage).where(_usage.c.pool == pool)).all():
        decayed = row.decayed * _left(now - row.decayed_at, half_life_seconds) + row.device_seconds - row.folded
        mine = (_usage.c.pool == pool, _usage.c.team == row.team, _usage.c.model == row.model)
        folded = {"decayed": decayed, "folded": row.device_seconds, "decayed_at": now}
        connection.execute(sa.update(_usage).where(*mine).values(**folded))


def _left(seconds: float, half_life_seconds: float) -> float:
    """What is left of one after so long; a clock that went back takes nothing away and adds nothing."""
    return float(0.5 ** (max(0.0, seconds) / half_life_seconds))
