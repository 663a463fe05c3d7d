"""`dsec reserve | unreserve`: devices kept for a team, or for runs with a tag, during a window of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsec_deployments.cli.options import Pool, Why

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session

Name = Annotated[int, typer.Argument(help="Its number, as `dsec orders` shows it.")]


def reserve(
    why: Why,
    to: Annotated[str, typer.Option("--to", help="When it ends: '4h' from now, '2026-12-01T20:00'.")],
    start: Annotated[str, typer.Option("--from", help="When it begins; now by default.")] = "now",
    team: Annotated[list[str] | None, typer.Option("--team", help="For this team. Repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="For runs with this tag. Repeatable.")] = None,
    devices: Annotated[int | None, typer.Option("--devices", min=1, help="So many devices, whole nodes first.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of this GPU model (with --devices).")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="All devices of this node. Repeatable.")] = None,
    pool: Pool = None,
) -> None:
    """Keep devices for somebody from one moment to another.

    Before it begins others may use them if they end in time, or can be evicted in time; nobody else starts on them
    while it lasts.

    Example: [bold]dsec reserve --team vision --devices 8 --from 18:00 --to 6h --why "paper deadline"[/]
    """
    from dsec_blocks.model.errors import InvalidRequest, UnknownTeam
    from dsec_deployments.cli.ordering import clock_time, moment, order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        now = s.clock.now()
        begins, ends = moment(start, now=now, option="--from"), moment(to, now=now, option="--to")
        if not max(begins, now) < ends:
            raise InvalidRequest(f"--to: the window {start} … {to} is over before it begins")
        if not team and not tag:
            raise InvalidRequest("--team or --tag: say for whom the devices are kept")
        teams = s.ledger.teams(s.pool)
        for name in team or []:
            if name not in teams:
                raise UnknownTeam(f"unknown team {name}; teams are {', '.join(sorted(teams))}")
        chosen = _devices(s, devices, model, node or [], begins, ends)
        args = {"devices": chosen, "start": begins, "end": ends, "teams": team or [], "tags": tag or []}
        whom = ", ".join([*(team or []), *(f"tag {name}" for name in tag or [])])
        window = f"{clock_time(begins)} to {clock_time(ends)}"
        order(s, "reserve", args, why=why, done=f"{len(chosen)} devices are kept for {whom} from {window}")


def unreserve(number: Name, why: Why = "", pool: Pool = None) -> None:
    """End a reservation before its time.

    Example: [bold]dsec unreserve 12[/]
    """
    from dsec_deployments.cli.ordering import order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        order(s, "unreserve", {"id": number}, why=why, done=f"reservation {number} is over")


def _devices(
    s: Session, count: int | None, model: str | None, names: list[str], begins: float, ends: float
) -> list[str]:
    """The devices to keep; those that another window has at the same time are not to be had."""
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_deployments.cli.freeze import known_node
    from dsec_workers.lifecycle.orders import choose_devices, standing

    if (count is None) == (not names):
        raise InvalidRequest("--devices or --node: say which of them, one is needed")
    nodes = s.ledger.nodes(s.pool)
    windows = standing(s.ledger.wishes(s.pool), nodes, s.clock.now()).windows
    taken = {uuid for window in windows if window.start < ends and begins < window.end for uuid in window.devices}
    if names:
        for name in names:
            known_node(s, name)
        found = [device.uuid for node in nodes if node.name in names for device in node.devices]
        if not taken.isdisjoint(found):
            raise InvalidRequest("--node: some of its devices are in another reservation then; see `dsec orders`")
        return found
    busy = {holding.device for holding in s.ledger.holders(s.pool)}
    assert count is not None
    found = choose_devices(nodes, count, model=model, taken=taken, busy=busy)
    if len(found) < count:
        of_model = f" {model}" if model else ""
        raise InvalidRequest(f"--devices: {count}{of_model} are wanted, {len(found)} are not in another reservation")
    return found
