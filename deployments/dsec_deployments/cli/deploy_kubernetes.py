"""`dsec deploy kubernetes`: DSec's own parts on a cluster."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Pool

if TYPE_CHECKING:
    from dsec_deployments.kubernetes.chart import Object
    from dsec_workers.clusters.kubernetes.api import Api


class DryRun(StrEnum):
    """How far to go."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


def deploy_kubernetes(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Where the worker runs.")] = "default",
    release: Annotated[str, typer.Option("--release", help="What its objects are called after.")] = "dsec",
    values: Annotated[
        list[Path] | None, typer.Option("--values", "-f", help="A file of values for the chart. Repeatable.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="One value of the chart, path.to.value=…; wins. Repeatable.")
    ] = None,
    dry_run: Annotated[
        DryRun, typer.Option("--dry-run", help="client: print the manifests. server: have the cluster judge them.")
    ] = DryRun.NONE,
    wait: Annotated[str, typer.Option("--wait", help="How long its pods may take to be there.")] = "5m",
    kubeconfig: Annotated[
        str | None, typer.Option(envvar="KUBECONFIG", help="Which cluster; the default one otherwise.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="A context of the kubeconfig.")] = None,
    pool: Pool = None,
) -> None:
    """Put DSec's worker (and, where asked for, its node agents) on a Kubernetes cluster, and wait until it is healthy.

    Example: [bold]dsec deploy kubernetes -n dsec --set gangs.namespaces={team-a} --dry-run=server[/]
    """
    import asyncio

    from dsec_blocks.model.units import parse_duration
    from dsec_workers.clusters.kubernetes.credentials import ClusterAccess, NoCluster

    if kubeconfig and not any(Path(path).exists() for path in kubeconfig.split(os.pathsep)):
        raise NoCluster(f"no Kubernetes cluster: {kubeconfig} does not exist; set KUBECONFIG, or give --kubeconfig")
    seconds = parse_duration(wait, field="--wait")
    given = [*(assignments or []), *([f"pool={pool}"] if pool else [])]
    access = ClusterAccess(kubeconfig=kubeconfig, context=context)
    chosen: dict[str, Any] = {"release": release, "namespace": namespace, "values": values or [], "assignments": given}
    asyncio.run(_deploy(access, chosen, dry_run, seconds))


async def _deploy(access: Any, chosen: dict[str, Any], dry_run: DryRun, seconds: float) -> None:
    import yaml

    from dsec_blocks.gateways.clock import SystemClock
    from dsec_deployments.cli.output import console, messages
    from dsec_deployments.kubernetes import applying, preflight
    from dsec_deployments.kubernetes.chart import render
    from dsec_workers.clusters.kubernetes.api import Api

    async with await Api.connect(access) as api:
        version = await api.get("/version")
        objects = render(kubernetes_version=version["gitVersion"], **chosen)
        if dry_run is DryRun.CLIENT:
            print(yaml.safe_dump_all(objects, sort_keys=False), end="")
            return
        if dry_run is DryRun.SERVER:
            await _judged(api, objects)
            return
        with messages.status("deploying …") as status:
            await preflight.check(api, objects)
            await applying.differences(api, objects)  # all or nothing, as far as the server can tell beforehand
            await applying.apply(api, objects, progress=status.update)
            await applying.until_healthy(api, objects, clock=SystemClock(), seconds=seconds, progress=status.update)
        console.print(f"{len(objects)} objects are in place and healthy in {chosen['namespace']}")


async def _judged(api: "Api", objects: "list[Object]") -> None:
    from dsec_deployments.cli.output import console, print_table
    from dsec_deployments.kubernetes import applying

    found = await applying.differences(api, objects)
    rows = [(each.what, each.kind, each.namespace, each.name, ", ".join(each.fields)) for each in found]
    print_table("", ["", "kind", "namespace", "name", "changes"], rows, empty="nothing to apply")
    console.print(f"all {len(found)} objects are accepted by the API server; nothing was changed")
