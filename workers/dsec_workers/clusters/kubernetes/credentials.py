"""Which cluster to speak to, and as whom: a Prefect block, the pod's own account, or a kubeconfig.

The same order as prefect-kubernetes, so that a `KubernetesClusterConfig` block a user already has is all it takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec_blocks.model.errors import DsecError

ENV_ACCOUNT = "DSEC_ACCOUNT_DIRECTORY"
ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a kubelet puts a pod's token and the cluster's certificate, unless the pod mounts them elsewhere."""


class NoCluster(DsecError):
    """There is no Kubernetes cluster to speak to, or its credentials cannot be read."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Where to find the credentials. All empty: the pod's own account, else the default kubeconfig."""

    kubeconfig: str | None = None
    """Path of a kubeconfig file."""
    context: str | None = None
    block: Mapping[str, Any] = field(default_factory=dict)
    """The contents of a `KubernetesClusterConfig` block: `config` (a kubeconfig as a dict) and `context_name`."""
    account_directory: str = ACCOUNT_DIRECTORY
    """The directory of the pod's own account: `token`, which is read again as the kubelet renews it, and `ca.crt`."""


async def client_configuration(access: ClusterAccess) -> Any:
    """A `kubernetes_asyncio` configuration, which knows how to renew its token.

    Raises `NoCluster` with what was tried.
    """
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    found = Configuration()
    try:
        if access.block:
            await config.load_kube_config_from_dict(
                config_dict=dict(access.block["config"]),
                context=access.block.get("context_name"),
                client_configuration=found,
            )
        elif access.kubeconfig:
            await config.load_kube_config(
                config_file=access.kubeconfig, context=access.context, client_configuration=found
            )
        else:
            try:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=found,
                    token_filename=f"{access.account_directory}/token",
                    cert_filename=f"{access.account_directory}/ca.crt",
                )
            except config.ConfigException:
                await config.load_kube_config(context=access.context, client_configuration=found)
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        tried = "the block" if access.block else access.kubeconfig or "the pod's own account and ~/.kube/config"
        raise NoCluster(
            f"no Kubernetes cluster: {tried} cannot be used ({error}). Set KUBECONFIG, name a KubernetesClusterConfig "
            "block, or run inside the cluster"
        ) from error
    return found
