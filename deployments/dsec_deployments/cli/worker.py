"""`dsec worker`: one worker in the foreground, which is what the systemd unit runs."""

import os
from typing import Annotated

import typer

from dsec_deployments import prefect_command
from dsec_deployments.cli.options import Pool


def worker(
    pool: Pool = None,
    name: Annotated[str | None, typer.Option("--name", help="The worker's name in the Prefect UI.")] = None,
    evict: Annotated[
        bool, typer.Option("--evict", help="When it is stopped, let its gangs checkpoint and leave first.")
    ] = False,
) -> None:
    """Run a worker of the pool until Ctrl-C or SIGTERM; its gangs run on and the next worker adopts them.

    With --evict they checkpoint when it is stopped, and wait for the next worker: stopping takes as long
    as their grace. A second worker of the same pool stands by and takes over within seconds.

    Example: [bold]dsec worker --pool dsec[/]
    """
    from dsec_blocks.gateways import processes
    from dsec_deployments.cli.session import session
    from dsec_workers.settings import ENV_DRAIN, EVICT

    with session(pool) as s:
        if not s.prefect.answers():
            from dsec_blocks.model.errors import ServerUnreachable

            raise ServerUnreachable(
                f"no Prefect server answers at {s.prefect.url}; start one with `dsec up`, or set PREFECT_API_URL"
            )
        environment = {**os.environ, **s.installation.worker_environment(), "PREFECT_API_URL": s.prefect.url}
        if evict:
            environment[ENV_DRAIN] = EVICT
        command = worker_command(s.pool, name=name)
    processes.execute(command, environment, at="worker.execute")


def worker_command(pool: str, *, name: str | None = None) -> list[str]:
    """The program that is a worker: Prefect's own command, with our worker type."""
    named = ["--name", name] if name else []
    return prefect_command.command("worker", "start", "--pool", pool, "--type", "dsec-gang", *named)
