"""The cluster that a worker's settings name, opened: what `DSEC_CLUSTER` chooses."""

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ACCOUNT_DIRECTORY, ENV_ACCOUNT, ClusterAccess, NoCluster
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.protocol import Cluster
from dsec_workers.machine import nodes_of
from dsec_workers.settings import KUBERNETES, WorkerSettings

ENV_BLOCK = "DSEC_KUBERNETES_BLOCK"
"""The name of a `KubernetesClusterConfig` block: where the cluster is, and as whom to speak to it."""


async def open_cluster(settings: WorkerSettings, *, pool: str, registry: CollectorRegistry | None = None) -> Cluster:
    """The worker's cluster, ready for its first launch; what its adapter counts is in `registry`.

    Raises `ClusterError` or `NoCluster` with what is missing.
    """
    if settings.cluster == KUBERNETES:
        return await _open_kubernetes(pool, os.environ, registry)
    cluster = LocalCluster(home=settings.home, nodes=nodes_of(settings), clock=SystemClock())
    await cluster.prepare()
    return cluster


async def _open_kubernetes(
    pool: str, environment: Mapping[str, str], registry: CollectorRegistry | None = None
) -> Cluster:
    try:
        from dsec_workers.clusters.kubernetes.api import Api
        from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
        from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics
        from dsec_workers.clusters.kubernetes.settings import KubernetesSettings

        access = await _access(environment)
        settings = KubernetesSettings.from_environment(pool, access=access, environment=environment)
        api = await Api.connect(access, metrics=KubernetesMetrics(pool, registry))
        cluster = KubernetesCluster(api, settings, clock=SystemClock())
    except ImportError as error:
        raise NoCluster(f"gangs on Kubernetes need more packages: pip install 'dsec[kubernetes]' ({error})") from error
    try:
        await cluster.prepare()
    except BaseException:
        await cluster.close()
        raise
    return cluster


async def _access(environment: Mapping[str, str]) -> ClusterAccess:
    name = environment.get(ENV_BLOCK)
    if not name:
        return ClusterAccess(
            kubeconfig=environment.get("KUBECONFIG") or None,
            context=environment.get("DSEC_CONTEXT"),
            account_directory=environment.get(ENV_ACCOUNT) or ACCOUNT_DIRECTORY,
        )
    from prefect_kubernetes.credentials import KubernetesClusterConfig  # type: ignore[import-untyped]

    try:
        block = await KubernetesClusterConfig.aload(name)
    except ValueError as error:
        raise InvalidRequest(f"{ENV_BLOCK}: there is no KubernetesClusterConfig block {name!r} ({error})") from error
    return ClusterAccess(block={"config": block.config, "context_name": block.context_name})
