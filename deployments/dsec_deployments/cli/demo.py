"""`dsec demo`: the platform proves its claims on this machine while one watches."""

from typing import Annotated

import typer


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running afterwards, to look around in the UI.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run only these scenes. Repeatable.")] = None,
) -> None:
    """Run the demonstration: 3 nodes × 4 declared GPUs, real training, real evictions (at most 4 minutes).

    It has a home, a server and a ledger of its own in .dsec/demo, and exits with 0 only if every claim held.

    Example: [bold]dsec demo[/]
    """
    from dsec_deployments.demo.show import run_demo

    raise typer.Exit(run_demo(keep=keep, only=only))
