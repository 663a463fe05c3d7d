"""Nodes and devices as the leader last saw them, and the shadows it casts on their future."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks, upsert
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.bulk import builder, nothing_is_garbage
from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.errors import LedgerError

_nodes = schema.nodes
_devices = schema.devices
_shadows = schema.shadows
_HEALTH = {health.value: health for health in Health}
_device = builder(Device)
_Rows = dict[str, tuple[Any, ...]]


def _columns(table: sa.Table) -> list[sa.Column[Any]]:
    return [column for column in table.c if column.name != "pool"]


_of_device = attrgetter(*(column.name for column in _columns(_devices)))


class Nodes(Transactions):
    """The pool's machines."""

    _put_last: tuple[Fence, tuple[Node, ...]] | None = None
    """By whom and what: what the tables hold since."""

    def put_nodes(self, fence: Fence, nodes: Sequence[Node]) -> None:
        """Make `nodes` all that the pool has. Only what differs from what is stored is written; often nothing.

        What this leader has put itself is not read again while it leads: nobody else writes nodes.
        Raises `LedgerError` for a device that is in the list twice.
        """
        put = (fence, tuple(nodes))
        if self._put_last == put and self._leads(fence):
            return
        self._put_last = None
        self._put_nodes(fence, nodes)
        if self._open.connection is None:  # what an outer transaction may still undo is not known to be there
            self._put_last = put

    def _leads(self, fence: Fence) -> bool:
        """Whether that is the leader still; a cheap look, which holds nothing."""
        leases = schema.leases.c
        mine = (leases.pool == fence.pool, leases.holder == fence.holder, leases.token == fence.token)
        with self.reading() as connection:
            return connection.execute(sa.select(leases.token).where(*mine, ~leases.released)).first() is not None

    def _put_nodes(self, fence: Fence, nodes: Sequence[Node]) -> None:
        nodes_now, devices_now = _node_rows(nodes), _device_rows(nodes)
        with self.reading() as connection:
            if (nodes_now, devices_now) == _stored(connection, fence.pool):
                return
        with self.transaction(at="ledger.put_nodes", fence=fence) as connection:
            nodes_then, devices_then = _stored(connection, fence.pool)
            # Nodes first, since devices name theirs; a device moves before the node that it leaves goes.
            _put(connection, _nodes, fence.pool, _changed(nodes_now, nodes_then))
            _drop(connection, _devices.c.uuid, fence.pool, devices_then.keys() - devices_now.keys())
            _put(connection, _devices, fence.pool, _changed(devices_now, devices_then))
            _drop(connection, _nodes.c.name, fence.pool, nodes_then.keys() - nodes_now.keys())

    def nodes(self, pool: str) -> tuple[Node, ...]:
        """The pool's nodes by name, each with its devices in NVML order."""
        return tuple(self._by_name(pool).values())

    def _by_name(self, pool: str) -> dict[str, Node]:
        by_node: dict[str, list[Device]] = defaultdict(list)
        query = sa.select(*_columns(_devices)).where(_devices.c.pool == pool)
        with self.reading() as connection, nothing_is_garbage():
            devices = connection.execute(query).all()
            for uuid, node, *more, health, slice_of, profile in devices:
                by_node[node].append(_device(uuid, node, *more, _HEALTH[health], slice_of, profile))
            for of_node in by_node.values():
                of_node.sort(key=attrgetter("index", "uuid"))
            rows = connection.execute(sa.select(_nodes).where(_nodes.c.pool == pool).order_by(_nodes.c.name)).all()
        return {
            row.name: Node(
                name=row.name,
                devices=tuple(by_node[row.name]),
                topology=tuple(row.topology),
                labels=row.labels,
                schedulable=row.schedulable,
                cpus=row.cpus,
                memory_bytes=row.memory_bytes,
            )
            for row in rows
        }


def _node_rows(nodes: Sequence[Node]) -> _Rows:
    return {
        node.name: (node.name, list(node.topology), dict(node.labels), node.schedulable, node.cpus, node.memory_bytes)
        for node in nodes
    }


def _device_rows(nodes: Sequence[Node]) -> _Rows:
    found: _Rows = {}
    for node in nodes:
        for device in node.devices:
            if device.uuid in found:
                raise LedgerError(
                    f"device {device.uuid} is on node {found[device.uuid][1]} and on node {node.name}: a device has "
                    "one place; correct the declaration of one of them"
                )
            found[device.uuid] = _of_device(device)
    return found


def _stored(connection: sa.Connection, pool: str) -> tuple[_Rows, _Rows]:
    """What the tables have of `pool`, by name and by UUID, as `_node_rows` and `_device_rows` write it."""
    nodes, devices = (
        {row[0]: tuple(row) for row in connection.execute(sa.select(*columns).where(table.c.pool == pool)).all()}
        for table, columns in ((_nodes, _columns(_nodes)), (_devices, _columns(_devices)))
    )
    return nodes, devices


def _changed(now: _Rows, then: _Rows) -> list[tuple[Any, ...]]:
    return [row for key, row in now.items() if then.get(key) != row]


def _put(connection: sa.Connection, table: sa.Table, pool: str, rows: Sequence[tuple[Any, ...]]) -> None:
    names = [column.name for column in _columns(table)]
    if rows:
        upsert(connection, table, [{"pool": pool, **dict(zip(names, row, strict=True))} for row in rows])


def _drop(connection: sa.Connection, key: sa.Column[Any], pool: str, gone: Collection[str]) -> None:
    for some in chunks(sorted(gone)):
        connection.execute(sa.delete(key.table).where(key.table.c.pool == pool, key.in_(some)))


class Shadows(Transactions):
    """Sticky reservations on future capacity, one a resource pool; the planner owns what a row says."""

    def shadows(self, pool: str) -> list[dict[str, Any]]:
        """The rows that were put last, by resource pool."""
        query = sa.select(_shadows.c.row).where(_shadows.c.pool == pool).order_by(_shadows.c.resource_pool)
        with self.reading() as connection:
            return list(connection.execute(query).scalars())

    def put_shadows(self, fence: Fence, rows: Sequence[dict[str, Any]]) -> None:
        """Make `rows` (each with its `resource_pool`) all there are; without news nothing is written."""
        by_pool = {str(row["resource_pool"]): row for row in rows}
        if [by_pool[name] for name in sorted(by_pool)] == self.shadows(fence.pool):
            return
        with self.transaction(at="ledger.put_shadows", fence=fence) as connection:
            connection.execute(
                sa.delete(_shadows).where(_shadows.c.pool == fence.pool, _shadows.c.resource_pool.not_in(by_pool))
            )
            values = [{"pool": fence.pool, "resource_pool": name, "row": row} for name, row in by_pool.items()]
            if values:
                upsert(connection, _shadows, values)
