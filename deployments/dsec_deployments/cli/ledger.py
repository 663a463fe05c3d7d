"""`dsec ledger`: the durable state, proved, copied, migrated."""

from pathlib import Path
from typing import Annotated

import typer

from dsec_deployments.cli.options import Json, Pool

app = typer.Typer(no_args_is_help=True, help="The durable state behind the pool.")


@app.command(epilog="Example: [bold]dsec ledger check[/] (exit code 1 when a rule is broken)")
def check(pool: Pool = None, json: Json = False) -> None:
    """Prove the invariants: no device held twice, every gang whole or absent, nothing held by nobody."""
    from dsec_deployments.cli.output import console, print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        violations = s.ledger.check(s.pool if pool else None)
    if json:
        print_json([{"rule": v.rule, "object": v.object, "text": v.text} for v in violations])
    elif violations:
        print_table(
            "Broken rules", ["rule", "object", "what"], [[v.rule, v.object, v.text] for v in violations], empty=""
        )
    else:
        console.print("the ledger keeps every rule")
    if violations:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]dsec ledger backup /backups/dsec-$(date +%F).db[/]")
def backup(path: Annotated[Path, typer.Argument(help="Where the copy goes; a file that exists is replaced.")]) -> None:
    """Write a consistent copy while the pool runs."""
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session

    with session() as s:
        s.ledger.backup(path)
    console.print(f"ledger copied to {path}")


@app.command(epilog="Example: [bold]dsec ledger migrate[/]")
def migrate() -> None:
    """Bring the database to this version's layout, as an upgraded worker does; workers of an older DSec then end."""
    from dsec_blocks.gateways.clock import SystemClock
    from dsec_blocks.ledger import Ledger
    from dsec_deployments import installation
    from dsec_deployments.cli.output import console

    url = installation.load().resolved_ledger_url()
    ledger = Ledger.open(url, clock=SystemClock(), migrate=False)
    try:
        before = ledger.version()
        if not ledger.needs_migration():
            console.print("the ledger is up to date")
            return
        ledger.migrate()
        console.print(f"the ledger went from {before or 'nothing'} to {ledger.version()}")
    finally:
        ledger.close()
