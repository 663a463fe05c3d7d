"""`dsec deploy`: send a flow to the pool with what its `@gang` asks for."""

from pathlib import Path
from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool


def deploy(
    target: Annotated[
        str, typer.Argument(help="FILE.py:FLOW, FILE.py (its only flow), or a prefect.yaml.")
    ] = "prefect.yaml",
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Deployment name; the flow's name by default.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", help="The team (work queue) whose runs these are.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="Run on this schedule, for example '0 3 * * *'.")] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A job variable, NAME=VALUE; wins over @gang. Repeatable.")
    ] = None,
    parameters: Annotated[list[str] | None, typer.Option("--param", help="A flow parameter, NAME=VALUE.")] = None,
    pool: Pool = None,
) -> None:
    """Deploy a flow, or everything in a prefect.yaml, merging what `@gang` asks for.

    Explicit job variables win and the difference is printed. A request that can never fit is refused.

    Example: [bold]dsec deploy flows/train.py:train --team vision -s priority=50[/]
    """
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_deployments import deployment
    from dsec_deployments.cli.output import console, messages
    from dsec_deployments.cli.session import session
    from dsec_deployments.prefect_api import configured

    with session(pool) as s:
        # Prefect's own command does not know the server that `dsec up` started.
        server = "" if configured("PREFECT_API_URL") == s.prefect.url else f"PREFECT_API_URL={s.prefect.url} "
        ours = s.installation.changed(prefect_api_url=s.prefect.url)
        s.prefect.get("health")

        with messages.status("deploying …"):
            if target.endswith((".yaml", ".yml")):
                if not Path(target).exists():
                    raise InvalidRequest(f"{target} does not exist here; name a flow: dsec deploy FILE.py:FLOW")
                names = deployment.deploy_project(Path(target), installation=ours, ledger=s.ledger)
            else:
                names = deployment.deploy_flow(
                    target,
                    name=name,
                    team=team,
                    cron=cron,
                    variables=deployment.assignments(variables or [], option="--set"),
                    parameters=deployment.assignments(parameters or [], option="--param"),
                    installation=ours,
                    ledger=s.ledger,
                )
        for deployed in names:
            console.print(f"deployed [bold]{deployed}[/]; run it with: {server}prefect deployment run '{deployed}'")
        console.print(f"or from {s.prefect.ui_url}/deployments")
