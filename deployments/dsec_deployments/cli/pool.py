"""`dsec pool`: the map of nodes and devices, with who holds what."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from dsec_deployments.cli.options import Json, Pool

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session


def pool(pool: Pool = None, json: Json = False) -> None:
    """Show every device of the pool and who holds it.

    Example: [bold]dsec pool[/]
    """
    from dsec_blocks.model.units import format_memory
    from dsec_deployments.cli.orders import standing_orders
    from dsec_deployments.cli.output import console, print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        rows = devices(s)
        stand = standing_orders(s)
    if json:
        print_json(rows)
        return
    nodes: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        nodes.setdefault(row["node"], []).append(row)
    width = max((len(devices_of_node) for devices_of_node in nodes.values()), default=0)
    print_table(
        f"Pool {s.pool}",
        ["node", "devices", *(str(index) for index in range(width))],
        [
            [node, f"{cards[0]['model']} {format_memory(cards[0]['memory_bytes'])}", *map(_cell, cards)]
            for node, cards in sorted(nodes.items())
        ],
        empty=f"pool {s.pool} has no devices yet: its worker has not reported any; see `dsec status`",
    )
    if rows:
        held = sum(row["run_id"] is not None for row in rows)
        console.print(f"{held} of {len(rows)} devices held")
    for order in stand:
        if order["order"] != "override":
            console.print(f"{order['order']} {order['number']}: {order['what']}, by {order['by']}: {order['why']}")


def devices(s: Session) -> list[dict[str, Any]]:
    """One row a device: where it is, who holds it (turn 0) and to whom it is promised (turn 1)."""
    from dsec_workers.lifecycle.orders import standing

    names = {gang.run_id: gang for gang in s.ledger.gangs(s.pool)}
    orders = standing(s.ledger.wishes(s.pool), s.ledger.nodes(s.pool), s.clock.now())
    holders = {(holding.device, holding.turn): holding.run_id for holding in s.ledger.holders(s.pool)}
    rows = []
    for node in s.ledger.nodes(s.pool):
        for device in node.devices:
            holder = names.get(holders.get((device.uuid, 0), ""))
            promised = names.get(holders.get((device.uuid, 1), ""))
            rows.append(
                {
                    "node": node.name,
                    "index": device.index,
                    "device": device.uuid,
                    "model": device.model,
                    "memory_bytes": device.memory_bytes,
                    "health": device.health,
                    "schedulable": node.schedulable,
                    "run_id": holder.run_id if holder else None,
                    "run": holder.name if holder else None,
                    "team": holder.team if holder else None,
                    "state": holder.state if holder else None,
                    "promised_to": promised.name if promised else None,
                    "closed": orders.frozen.everything or orders.frozen.nodes.get(node.name),
                    "kept": [
                        {"from": kept.start, "to": kept.end if kept.end < inf else None, "text": kept.text}
                        for kept in orders.withheld
                        if device.uuid in kept.devices
                    ],
                }
            )
    return rows


def _cell(row: dict[str, Any]) -> str:
    if row["health"] != "healthy":
        return f"[red]{row['health']}[/]"
    if row["run"] is None:
        if row["closed"] or not row["schedulable"]:
            return "[yellow]closed[/]"
        return "[magenta]kept[/]" if row["kept"] else "[green]free[/]"
    promised = f" [dim]→ {row['promised_to']}[/]" if row["promised_to"] else ""
    colour = {"running": "cyan", "evicting": "yellow"}.get(row["state"], "blue")
    return f"[{colour}]{row['run']}[/]{promised}"
