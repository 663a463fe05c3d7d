"""`dsec incident`: the pool as it is now in one file, to be looked at and planned again elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool

app = typer.Typer(no_args_is_help=True, help="The pool at one instant, as a file.")


@app.callback()
def _group() -> None:
    pass


@app.command(epilog="Example: [bold]dsec incident capture odd-queue.json[/]")
def capture(
    path: Annotated[Path, typer.Argument(help="Where the file goes; one that exists is replaced.")],
    why: Annotated[str, typer.Option("--why", help="What is odd, kept in the file.")] = "",
    decisions: Annotated[int, typer.Option("--decisions", min=0, help="The last so many decisions.")] = 1000,
    pool: Pool = None,
) -> None:
    """Write nodes, gangs, teams, usage, policy, orders and the last decisions, without secrets.

    `dsec simulate` and `dsec what-if` load it.
    """
    import json

    from dsec_blocks.gateways import files
    from dsec_blocks.model.errors import DsecError
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session
    from dsec_deployments.pool_checks import prefect_checks
    from dsec_workers.lifecycle import incidents

    with session(pool) as s:
        checks, now = prefect_checks(s.prefect, s.pool), s.clock.now()
        document = incidents.capture(s.ledger, s.pool, now=now, by=s.user, why=why, decisions=decisions, checks=checks)
    text = json.dumps(document, indent=1) + "\n"
    try:
        files.write(path, text.encode(), at="incident.write")
    except OSError as error:
        raise DsecError(f"incident {path}: {error.strerror or error}; choose another place") from error
    console.print(f"pool {s.pool} captured in {path}: {len(document['nodes'])} nodes, {len(document['gangs'])} gangs")
