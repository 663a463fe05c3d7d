"""`dsec down`: nothing of the pool runs on this machine any more; its history stays."""

from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool


def down(
    evict: Annotated[bool, typer.Option("--evict", help="Let every running gang checkpoint first.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Delete .dsec too: history, ledger, logs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --purge.")] = False,
    pool: Pool = None,
) -> None:
    """Stop the worker, its gangs, and the Prefect server if `dsec up` started it.

    Gangs that run are stopped; with --evict they checkpoint first. Either way they resume after the next `dsec up`.

    Example: [bold]dsec down --evict[/]
    """
    from dsec_deployments import installation, shutdown
    from dsec_deployments.cli.output import console, messages

    home = installation.home()
    if purge and not yes:
        typer.confirm(f"Delete {home} with the history of every run?", abort=True)
    wanted = installation.load().changed(pool=pool)
    with messages.status("stopping …") as status:
        shutdown.bring_down(
            wanted, evict=evict, purge=purge, progress=status.update, note=lambda text: messages.print(f"✓ {text}")
        )
    console.print("nothing of it runs any more" + ("" if purge else f"; history stays in {home}"))
