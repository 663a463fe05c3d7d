"""`dsec up`: from nothing to a pool that takes runs, on one machine."""

from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool


def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Declare this many nodes instead of using this machine's own GPUs.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, max=64, help="Declared GPUs on each node.")] = None,
    gpu_model: Annotated[str | None, typer.Option(help="Model of the declared GPUs, for example H100.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of each, with its unit, for example 80GiB.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the Prefect server to start.")] = None,
    pool: Pool = None,
    database: Annotated[
        str | None, typer.Option(help="The ledger's URL: sqlite:///… or postgresql://…; SQLite in .dsec by default.")
    ] = None,
    cluster_cache: Annotated[
        bool | None,
        typer.Option(
            "--cluster-cache/--no-cluster-cache", help="Start an S3 store (SeaweedFS) that the nodes' caches share."
        ),
    ] = None,
    cluster_cache_limit: Annotated[
        str | None,
        typer.Option(help="What that store may take, for example 500GiB; a fifth of the disk if nobody says."),
    ] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            metavar="simulated|off",
            help="Run gangs in pods: a real Kubernetes control plane here, and nodes whose pods are processes.",
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, show the worker's log, stop it on Ctrl-C.")
    ] = False,
) -> None:
    """Start everything a pool needs; what runs already is left alone.

    A Prefect server (on SQLite, unless PREFECT_API_URL names one), the work pool with its form, a queue per team, a
    worker, the node's agent, and the deployments of ./prefect.yaml. With [bold]--kubernetes simulated[/] a cluster too.

    Example: [bold]dsec up --nodes 3 --gpus 4 --gpu-model H100[/]
    """
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.units import parse_memory
    from dsec_deployments import installation, startup
    from dsec_deployments.cli.output import console, messages

    if gpu_memory is not None:
        parse_memory(gpu_memory, field="--gpu-memory")
    if cluster_cache_limit is not None:
        parse_memory(cluster_cache_limit, field="--cluster-cache-limit")
    if kubernetes not in (None, installation.SIMULATED, installation.OFF):
        raise InvalidRequest(
            f"--kubernetes: {kubernetes!r} is neither {installation.SIMULATED} (a cluster on this machine) nor "
            f"{installation.OFF}; on a cluster of your own: `dsec deploy kubernetes`"
        )
    wanted = installation.load().changed(
        pool=pool,
        port=port,
        nodes=nodes,
        gpus=gpus,
        gpu_model=gpu_model,
        gpu_memory=gpu_memory,
        ledger_url=database,
        cluster_cache=cluster_cache,
        cluster_cache_limit=cluster_cache_limit,
        kubernetes=kubernetes,
    )
    with messages.status("starting …") as status:
        started = startup.bring_up(wanted, progress=status.update, note=lambda text: messages.print(f"✓ {text}"))
    console.print(f"Pool [bold]{started.installation.pool}[/] is up: {started.prefect_ui}")
    if started.installation.is_on_kubernetes:
        kubeconfig = started.installation.worker_environment()["KUBECONFIG"]
        console.print(f"Its members are pods: KUBECONFIG={kubeconfig} kubectl get pods -w")
    if not foreground:
        console.print("Next: `dsec deploy FILE.py:FLOW`, `dsec queue`, `dsec pool`; stop with `dsec down`")
        return
    startup.stay(started, print)
