"""`dsec deploy kubernetes`: DSec's own parts on a cluster."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Pool

if TYPE_CHECKING:
    from dsec_deployments.kubernetes.applying import Difference
    from dsec_deployments.kubernetes.chart import Object
    from dsec_deployments.kubernetes.release import Present
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
    delete: Annotated[
        bool, typer.Option("--delete", help="Take all of it away again. Refused while gangs of its pool run.")
    ] = False,
    pool: Pool = None,
) -> None:
    """Put DSec's worker (and, where asked for, its node agents) on a Kubernetes cluster, and wait until it is healthy.

    What a former call made and these values no longer ask for is taken away.

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
    if delete:
        asyncio.run(_delete(access, name=release, namespace=namespace, dry_run=dry_run, seconds=seconds))
        return
    chosen: dict[str, Any] = {"release": release, "namespace": namespace, "values": values or [], "assignments": given}
    asyncio.run(_deploy(access, chosen, dry_run, seconds))


async def _deploy(access: Any, chosen: dict[str, Any], dry_run: DryRun, seconds: float) -> None:
    import yaml

    from dsec_blocks.gateways.clock import SystemClock
    from dsec_deployments.cli.output import console, messages
    from dsec_deployments.kubernetes import applying, preflight, release
    from dsec_deployments.kubernetes.chart import render
    from dsec_workers.clusters.kubernetes.api import Api

    async with await Api.connect(access) as api:
        version = await api.get("/version")
        objects = render(kubernetes_version=version["gitVersion"], **chosen)
        if dry_run is DryRun.CLIENT:
            print(yaml.safe_dump_all(objects, sort_keys=False), end="")
            return
        mine = release.Release(name=chosen["release"], namespace=chosen["namespace"])
        whole = await release.present(api, mine)
        left_over = whole.beside(objects)
        if dry_run is DryRun.SERVER:
            await _judged(api, objects, left_over)
            return
        with messages.status("deploying …") as status:
            await preflight.check(api, objects)
            await release.refuse_while_gangs_run(api, whole, left_over)
            await applying.differences(api, objects)  # all or nothing, as far as the server can tell beforehand
            await applying.apply(api, objects, progress=status.update)
            await release.remove(api, left_over.objects, progress=status.update)
            await applying.until_healthy(api, objects, clock=SystemClock(), seconds=seconds, progress=status.update)
        console.print(f"{len(objects)} objects are in place and healthy in {chosen['namespace']}")
        if left_over.objects:
            console.print(f"{len(left_over.objects)} that the values no longer ask for are gone")
        _tell_unseen(left_over)


async def _delete(access: Any, *, name: str, namespace: str, dry_run: DryRun, seconds: float) -> None:
    from dsec_blocks.gateways.clock import SystemClock
    from dsec_deployments.cli.output import console, messages
    from dsec_deployments.kubernetes import release
    from dsec_workers.clusters.kubernetes.api import Api

    mine = release.Release(name=name, namespace=namespace)
    async with await Api.connect(access) as api:
        if dry_run is not DryRun.NONE:
            found = await release.present(api, mine)
            _print_differences([], found)
            console.print(f"{len(found.objects)} objects would go; nothing was changed")
            return
        with messages.status("taking away …") as status:
            gone = await release.remove_all(api, mine, clock=SystemClock(), seconds=seconds, progress=status.update)
        if gone.objects:
            console.print(
                f"{len(gone.objects)} objects of {name} in {namespace} are gone; your Secrets, the ledger and the work "
                "pool are as they were"
            )
        else:
            console.print(
                f"nothing of {name} in {namespace} was put there by `dsec deploy kubernetes`, so nothing was taken "
                "away (what helm installed, `helm uninstall` takes away)"
            )
        _tell_unseen(gone)


async def _judged(api: "Api", objects: "list[Object]", left_over: "Present") -> None:
    from dsec_deployments.cli.output import console
    from dsec_deployments.kubernetes import applying

    found = await applying.differences(api, objects)
    _print_differences(found, left_over)
    console.print(f"all {len(found)} objects are accepted by the API server; nothing was changed")
    _tell_unseen(left_over)


def _print_differences(found: "list[Difference]", left_over: "Present") -> None:
    from dsec_deployments.cli.output import print_table
    from dsec_deployments.kubernetes import applying

    every = [*found, *applying.taken_away(left_over.objects)]
    rows = [(each.what, each.kind, each.namespace, each.name, ", ".join(each.fields)) for each in every]
    print_table("", ["", "kind", "namespace", "name", "changes"], rows, empty="nothing is there")


def _tell_unseen(found: "Present") -> None:
    from dsec_deployments.cli.output import messages

    if found.unseen:
        messages.print(
            f"old objects of kind {', '.join(found.unseen)} were not looked for: this account may not list them"
        )
