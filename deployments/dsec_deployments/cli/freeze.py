"""`dsec freeze | thaw`: nobody new is admitted to the pool, a team, or a node; what runs there runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsec_deployments.cli.options import Pool, Why

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session

OfTeam = Annotated[str | None, typer.Option("--team", help="Only this team.")]
OfNode = Annotated[str | None, typer.Option("--node", help="Only this node.")]


def freeze(why: Why, team: OfTeam = None, node: OfNode = None, pool: Pool = None) -> None:
    """Admit nobody until `dsec thaw`: to the whole pool, or to one team or node. Running gangs are left alone.

    Example: [bold]dsec freeze --team vision --why "quota is being discussed"[/]
    """
    from dsec_deployments.cli.ordering import order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        args, what = _scope(s, team, node)
        order(s, "freeze", args, why=why, done=f"admission to {what} is frozen")


def thaw(team: OfTeam = None, node: OfNode = None, why: Why = "", pool: Pool = None) -> None:
    """Admit again what `dsec freeze` has stopped.

    Example: [bold]dsec thaw --team vision[/]
    """
    from dsec_deployments.cli.ordering import order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        args, what = _scope(s, team, node)
        order(s, "thaw", args, why=why, done=f"admission to {what} is open")


def _scope(s: Session, team: str | None, node: str | None) -> tuple[dict[str, str | None], str]:
    from dsec_blocks.model.errors import InvalidRequest, UnknownTeam

    if team is not None and node is not None:
        raise InvalidRequest("--team and --node: freeze one of them at a time")
    if team is not None:
        teams = s.ledger.teams(s.pool)
        if team not in teams:
            raise UnknownTeam(f"unknown team {team}; teams are {', '.join(sorted(teams))}")
        return {"scope": "team", "name": team}, f"team {team}"
    if node is not None:
        known_node(s, node)
        return {"scope": "node", "name": node}, f"node {node}"
    return {"scope": "all", "name": None}, f"pool {s.pool}"


def known_node(s: Session, name: str) -> None:
    """Raises `InvalidRequest`, naming the nodes there are."""
    from dsec_blocks.model.errors import InvalidRequest

    names = [node.name for node in s.ledger.nodes(s.pool)]
    if name not in names:
        known = ", ".join(names[:20]) or "not reported yet (see `dsec status`)"
        raise InvalidRequest(f"unknown node {name}; the nodes of pool {s.pool} are {known}")
