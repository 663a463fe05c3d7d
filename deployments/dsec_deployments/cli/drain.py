"""`dsec drain | undrain`: a node is to be empty, at once or by a deadline."""

from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool, Why

Node = Annotated[str, typer.Argument(help="The node, as `dsec pool` names it.")]


def drain(
    node: Node,
    why: Why,
    by: Annotated[
        str | None, typer.Option("--by", help="When it must be empty: '2h', '2026-12-01T08:00'. At once by default.")
    ] = None,
    pool: Pool = None,
) -> None:
    """Empty a node. Its gangs checkpoint in time and wait in line again; what ends by the deadline may still start.

    Example: [bold]dsec drain n3 --by 2h --why "fan is replaced"[/]
    """
    from dsec_deployments.cli.freeze import known_node
    from dsec_deployments.cli.ordering import clock_time, moment, order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        known_node(s, node)
        now = s.clock.now()
        deadline = None if by is None else moment(by, now=now, option="--by")
        if deadline is not None and deadline <= now:
            raise typer.BadParameter(f"{by!r} is in the past; leave it out to drain at once", param_hint="--by")
        args = {"node": node} if deadline is None else {"node": node, "deadline": deadline}
        when = "now" if deadline is None else f"by {clock_time(deadline)}"
        order(s, "drain", args, why=why, done=f"node {node} is being emptied {when}")


def undrain(node: Node, why: Why = "", pool: Pool = None) -> None:
    """Use a drained node again.

    Example: [bold]dsec undrain n3[/]
    """
    from dsec_deployments.cli.ordering import order
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        order(s, "drain", {"node": node, "undo": True}, why=why, done=f"node {node} is in use again")
