"""`dsec demo`: the platform proves its claims on this machine while one watches."""

from typing import Annotated

import typer


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running afterwards, to look around in the UI.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="In pods, on a real control plane of its own (built once, with Go).")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run only these scenes. Repeatable.")] = None,
) -> None:
    """Run the demonstration: 3 nodes × 4 declared GPUs, real training, real evictions (at most 4 minutes).

    It has a home, a server and a ledger of its own in .dsec/demo (with [bold]--kubernetes[/] in .dsec/demo-kube), and
    exits with 0 only if every claim held.

    Example: [bold]dsec demo[/]
    """
    from dsec_deployments.demo.show import run_demo
    from dsec_deployments.demo.venue import KUBERNETES, THIS_MACHINE

    raise typer.Exit(run_demo(KUBERNETES if kubernetes else THIS_MACHINE, keep=keep, only=only))
