"""The command tree."""

from typing import Annotated

import typer

from dsec_deployments.cli import (
    agent,
    cache,
    checkpoint,
    demo,
    deploy,
    deploy_kubernetes,
    down,
    drain,
    explain,
    freeze,
    incident,
    ledger,
    logs,
    orders,
    override,
    policy,
    pool,
    prefetch,
    queue,
    reserve,
    simulate,
    status,
    steer,
    team,
    up,
    what_if,
    worker,
)
from dsec_deployments.cli.tree import DEPLOY_KUBERNETES, CommandTree

app = typer.Typer(
    name="dsec",
    cls=CommandTree,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One elastic GPU pool for training and inference, on Prefect.",
    epilog="Start with [bold]dsec up[/], or watch [bold]dsec demo[/].",
)

_ON_THIS_MACHINE = "On this machine"
_RUNS = "Runs"
_POOL = "The pool"
_OPERATORS = "Operators"

app.command(rich_help_panel=_ON_THIS_MACHINE)(up.up)
app.command(rich_help_panel=_ON_THIS_MACHINE)(down.down)
app.command(rich_help_panel=_ON_THIS_MACHINE)(status.status)
app.command(rich_help_panel=_ON_THIS_MACHINE)(worker.worker)
app.command(rich_help_panel=_ON_THIS_MACHINE)(agent.agent)
app.command(rich_help_panel=_ON_THIS_MACHINE)(prefetch.prefetch)
app.command(rich_help_panel=_ON_THIS_MACHINE)(demo.demo)
app.command(rich_help_panel=_RUNS)(deploy.deploy)
app.command(DEPLOY_KUBERNETES, rich_help_panel=_OPERATORS)(deploy_kubernetes.deploy_kubernetes)
app.command(rich_help_panel=_RUNS)(queue.queue)
app.command(rich_help_panel=_RUNS)(explain.explain)
app.command(rich_help_panel=_RUNS)(logs.logs)
app.command(rich_help_panel=_RUNS)(steer.prioritize)
app.command(rich_help_panel=_RUNS)(steer.evict)
app.command(rich_help_panel=_RUNS)(steer.cancel)
app.command(rich_help_panel=_POOL)(pool.pool)
app.command(rich_help_panel=_OPERATORS)(freeze.freeze)
app.command(rich_help_panel=_OPERATORS)(freeze.thaw)
app.command(rich_help_panel=_OPERATORS)(drain.drain)
app.command(rich_help_panel=_OPERATORS)(drain.undrain)
app.command(rich_help_panel=_OPERATORS)(reserve.reserve)
app.command(rich_help_panel=_OPERATORS)(reserve.unreserve)
app.command(rich_help_panel=_OPERATORS)(override.override)
app.command(rich_help_panel=_OPERATORS)(orders.orders)
app.add_typer(incident.app, name="incident", rich_help_panel=_OPERATORS)
app.command("what-if", rich_help_panel=_POOL)(what_if.what_if)
app.command(rich_help_panel=_POOL)(simulate.simulate)
app.add_typer(cache.app, name="cache", rich_help_panel=_ON_THIS_MACHINE)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel=_RUNS)
app.add_typer(team.app, name="team", rich_help_panel=_POOL)
app.add_typer(policy.app, name="policy", rich_help_panel=_POOL)
app.add_typer(ledger.app, name="ledger", rich_help_panel=_POOL)


def _version(wanted: bool) -> None:
    if wanted:
        from dsec_blocks import __version__

        print(f"dsec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
