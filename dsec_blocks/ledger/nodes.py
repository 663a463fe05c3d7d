"""Nodes and devices as the leader last saw them, and the shadows it casts on their future."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import upsert
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.devices import Device, Health, Node

_nodes = schema.nodes
_devices = schema.devices
_shadows = schema.shadows
_DEVICE_FIELDS = tuple(column.name for column in _devices.c if column.name != "pool")


class Nodes(Transactions):
    """The pool's machines."""

    def put_nodes(self, fence: Fence, nodes: Sequence[Node]) -> None:
        """Make `nodes` all that the pool has; without news nothing is written."""
        if tuple(sorted(nodes, key=lambda node: node.name)) == self.nodes(fence.pool):
            return
        pool = fence.pool
        with self.transaction(at="ledger.put_nodes", fence=fence) as connection:
            for table in (_devices, _nodes):
                connection.execute(sa.delete(table).where(table.c.pool == pool))
            if nodes:
                connection.execute(sa.insert(_nodes), [_node_row(pool, node) for node in nodes])
            rows = [_device_row(pool, device) for node in nodes for device in node.devices]
            if rows:
                connection.execute(sa.insert(_devices), rows)

    def nodes(self, pool: str) -> tuple[Node, ...]:
        """The pool's nodes by name, each with its devices in NVML order."""
        by_node: dict[str, list[Device]] = defaultdict(list)
        with self.reading() as connection:
            devices = sa.select(*(_devices.c[name] for name in _DEVICE_FIELDS)).where(_devices.c.pool == pool)
            for row in connection.execute(devices.order_by(_devices.c.node, _devices.c.index)).mappings():
                by_node[row["node"]].append(Device(**{**row, "health": Health(row["health"])}))
            rows = connection.execute(sa.select(_nodes).where(_nodes.c.pool == pool).order_by(_nodes.c.name)).all()
        return tuple(
            Node(
                name=row.name,
                devices=tuple(by_node[row.name]),
                topology=tuple(row.topology),
                labels=row.labels,
                schedulable=row.schedulable,
                cpus=row.cpus,
                memory_bytes=row.memory_bytes,
            )
            for row in rows
        )


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


def _node_row(pool: str, node: Node) -> dict[str, Any]:
    return {
        "pool": pool,
        "name": node.name,
        "topology": list(node.topology),
        "labels": dict(node.labels),
        "schedulable": node.schedulable,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
    }


def _device_row(pool: str, device: Device) -> dict[str, Any]:
    return {"pool": pool, **{name: getattr(device, name) for name in _DEVICE_FIELDS}}
