"""What a pool looks like in numbers, counted by the database: for metrics, which need sums and no rows.

Everything is read from one consistent state, so that what is held never exceeds what there is, and a reservation that
somebody gives back at this moment is not taken for one that leaked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.devices import Health
from dsec_blocks.model.gangs import HOLDING_STATES

HEALTHY, FROZEN, CLOSED = "healthy", "frozen", "closed"
"""A device may take work; is frozen itself; or sits in a node that is closed (cordoned, drained, not ready)."""

_devices, _nodes, _gangs = schema.devices, schema.nodes, schema.gangs
_rows, _usage, _inventories = schema.reservations, schema.usage, schema.inventories


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCount:
    """How many devices of a model in one health there are, are held, and are promised behind their holders."""

    model: str
    health: str
    total: int
    held: int
    promised: int

    @property
    def free(self) -> int:
        """Devices that a gang could get now."""
        return max(0, self.total - self.held) if self.health == HEALTHY else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One pool's numbers at one instant."""

    devices: Sequence[DeviceCount]
    held_by_team: Mapping[tuple[str, str], int]
    """(team, model) → devices held."""
    device_seconds: Mapping[tuple[str, str], float]
    """(team, model) → device-seconds charged since the ledger began."""
    leaked: int
    """Reservations of attempts that hold no devices: always 0."""
    reported_at: Mapping[str, float]
    """Node → when its agent last said what it holds, by the agent's clock; nodes that never had an agent are absent."""


class PoolFigures(Transactions):
    """Reading them."""

    def figures(self, pool: str) -> Figures:
        """The numbers of `pool`."""
        with self.reading() as connection:
            return Figures(
                devices=_counts(connection, pool),
                held_by_team=_held_by_team(connection, pool),
                device_seconds={
                    (row.team, row.model): row.device_seconds
                    for row in connection.execute(sa.select(_usage).where(_usage.c.pool == pool))
                },
                leaked=_leaked(connection, pool),
                reported_at=_reported_at(connection, pool),
            )


def _counts(connection: sa.Connection, pool: str) -> list[DeviceCount]:
    health = sa.case(
        (_devices.c.health == Health.FROZEN, FROZEN), (_nodes.c.schedulable.is_(False), CLOSED), else_=HEALTHY
    )
    in_node = sa.and_(_nodes.c.pool == _devices.c.pool, _nodes.c.name == _devices.c.node)
    first, second = _rows.alias("first"), _rows.alias("second")
    query = (
        sa.select(
            _devices.c.model,
            health.label("condition"),
            sa.func.count().label("total"),
            sa.func.count(first.c.device).label("held"),
            sa.func.count(second.c.device).label("promised"),
        )
        .join_from(_devices, _nodes, in_node)
        .outerjoin(first, sa.and_(first.c.device == _devices.c.uuid, first.c.turn == 0))
        .outerjoin(second, sa.and_(second.c.device == _devices.c.uuid, second.c.turn == 1))
        .where(_devices.c.pool == pool)
        .group_by(_devices.c.model, sa.literal_column("condition"))
    )
    return [
        DeviceCount(model=row.model, health=row.condition, total=row.total, held=row.held, promised=row.promised)
        for row in connection.execute(query)
    ]


def _held_by_team(connection: sa.Connection, pool: str) -> dict[tuple[str, str], int]:
    query = (
        sa.select(_gangs.c.team, _devices.c.model, sa.func.count().label("held"))
        .join_from(_rows, _gangs, _gangs.c.run_id == _rows.c.run_id)
        .outerjoin(_devices, sa.and_(_devices.c.pool == _rows.c.pool, _devices.c.uuid == _rows.c.device))
        .where(_rows.c.pool == pool, _rows.c.turn == 0)
        .group_by(_gangs.c.team, _devices.c.model)
    )
    return {(row.team, row.model or ""): row.held for row in connection.execute(query)}


def _leaked(connection: sa.Connection, pool: str) -> int:
    owner = sa.and_(
        _gangs.c.run_id == _rows.c.run_id,
        _gangs.c.attempt == _rows.c.attempt,
        _gangs.c.state.in_(sorted(HOLDING_STATES)),
    )
    query = sa.select(sa.func.count()).select_from(_rows).outerjoin(_gangs, owner)
    return int(connection.execute(query.where(_rows.c.pool == pool, _gangs.c.run_id.is_(None))).scalar_one())


def _reported_at(connection: sa.Connection, pool: str) -> dict[str, float]:
    query = sa.select(_inventories.c.node, _inventories.c.at).join(
        _nodes, sa.and_(_nodes.c.name == _inventories.c.node, _nodes.c.pool == pool)
    )
    return {row.node: row.at for row in connection.execute(query)}
