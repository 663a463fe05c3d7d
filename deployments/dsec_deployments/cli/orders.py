"""`dsec orders`: what operators have ordered and not taken back, with who and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsec_deployments.cli.options import Json, Pool

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session


def orders(pool: Pool = None, json: Json = False) -> None:
    """List the freezes, drains, reservations and overrides that stand.

    Example: [bold]dsec orders[/]
    """
    from dsec_deployments.cli.ordering import clock_time
    from dsec_deployments.cli.output import print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        rows = standing_orders(s)
    if json:
        print_json(rows)
        return
    print_table(
        f"Orders in pool {s.pool}",
        ["number>", "order", "what", "since", "by", "why", ""],
        [
            [row["number"], row["order"], row["what"], clock_time(row["at"]), row["by"], row["why"]]
            + ["" if row["taken_up"] else "not taken up yet"]
            for row in rows
        ],
        empty=f"no orders stand in pool {s.pool}",
    )


def standing_orders(s: Session) -> list[dict[str, Any]]:
    """One row an order, oldest first."""
    from dsec_blocks.ledger import STANDING_KINDS

    names = {gang.run_id: gang.name for gang in s.ledger.gangs(s.pool)}
    return [
        {
            "number": wish.id,
            "order": wish.kind,
            "what": _what(wish.kind, wish.args, names.get(wish.run_id or "", wish.run_id or "")),
            "args": wish.args,
            "run_id": wish.run_id,
            "by": wish.by,
            "why": wish.why,
            "at": wish.at,
            "taken_up": wish.taken_up_at is not None,
        }
        for wish in s.ledger.wishes(s.pool)
        if wish.kind in STANDING_KINDS and not wish.args.get("undo")
    ]


def _what(kind: str, args: dict[str, Any], run: str) -> str:
    from dsec_deployments.cli.ordering import clock_time

    match kind:
        case "freeze":
            return "the whole pool" if args["scope"] == "all" else f"{args['scope']} {args['name']}"
        case "drain":
            return str(args["node"]) + (f" by {clock_time(args['deadline'])}" if args.get("deadline") else "")
        case "reserve":
            whom = [*args.get("teams", ()), *(f"tag {tag}" for tag in args.get("tags", ()))]
            window = f"{clock_time(args['start'])} to {clock_time(args['end'])}"
            return f"{len(args['devices'])} devices for {', '.join(whom)}, {window}"
        case _:
            return f"{run}: {'start next' if args.get('admit') else 'hold'}"
