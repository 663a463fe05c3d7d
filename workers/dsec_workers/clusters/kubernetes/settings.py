"""What the Kubernetes adapter is told: which cluster, which namespace, and what our pods are made of."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.names import ENV_STORE
from dsec_blocks.model.units import parse_duration
from dsec_workers.clusters.kubernetes import variables
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.node_model import TOPOLOGY_LABELS
from dsec_workers.clusters.kubernetes.pod_security import MEMBER_USER
from dsec_workers.clusters.kubernetes.tolerations import GPU_TOLERATIONS, Toleration, read_tolerations

_T = TypeVar("_T")
OUTPOST_PORT = 7077
SCRATCH = "/dsec"
"""Where a member's pod keeps its gang directory: a volume of its own, so that the root file system may be read-only."""
TERMINATION_LOG = "/dev/termination-log"
DEFAULT_IMAGE = "dsec:latest"
ENV_TOLERATIONS = "DSEC_KUBERNETES_TOLERATIONS"
"""A JSON list as in a pod's spec; "[]" is none, without it what is customary for GPU nodes."""
ENV_TOPOLOGY_LABELS = "DSEC_KUBERNETES_TOPOLOGY_LABELS"
ENV_PULL_SECRETS = "DSEC_KUBERNETES_PULL_SECRETS"
ENV_USER = "DSEC_KUBERNETES_USER"
ENV_SHARED_MEMORY = "DSEC_KUBERNETES_SHARED_MEMORY"
ENV_UPLOAD = "DSEC_KUBERNETES_UPLOAD"
UPLOAD_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """One pool on one cluster."""

    pool: str
    access: ClusterAccess = field(default_factory=ClusterAccess)
    namespace: str = "default"
    image: str = DEFAULT_IMAGE
    """Of runs that name none."""
    priority_class: str = ""
    """Above the cluster's default, with `preemptionPolicy: Never`; empty is none. Without one kube-scheduler may
    preempt single members of a gang."""
    service_account: str = ""
    secret: str = "dsec-prefect"
    """The namespace's Secret with the address and key of the Prefect API, and the key of the gang channels."""
    store: str = ""
    """The checkpoint store of gangs that name none; without one what they save is gone with their pods."""
    cache_path: str = ""
    """The folder on each node where its agent keeps the cache: pods get it under the same path. Empty: none."""
    port: int = OUTPOST_PORT
    upload_seconds: int = UPLOAD_SECONDS
    """What a pod has after its gang's grace, for what is still in its spool."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the gangs' namespaces with which their images are pulled."""
    user: int = MEMBER_USER
    """Who members run as, without privileges, unless their template says another; 0: as template and image say."""
    shared_memory: str = ""
    """The size of a member's /dev/shm, as a quantity. Empty: as much as its pod may have of memory."""
    pull_seconds: float = 1200.0
    """What images and init containers may take on top of the time that a start has (`DSEC_IMAGE_PULL`)."""
    topology_labels: tuple[str, ...] = TOPOLOGY_LABELS
    """Labels of nodes that say where they are, from the widest level down to the rack."""
    tolerations: tuple[Toleration, ...] = GPU_TOLERATIONS
    """What all gangs' pods tolerate: nodes whose taints these cover are open. What a template tolerates beyond them is
    put on its pods and opens no node."""
    node_selector: str = ""
    """A label selector: which of the cluster's nodes are the pool's. Empty: all."""
    has_outposts: bool = True
    """False where containers run in name only (KWOK nodes): members are then believed by their pods' phases alone."""
    creates_at_once: int = 32
    """Requests in flight, over all gangs."""

    @classmethod
    def from_environment(
        cls, pool: str, *, access: ClusterAccess, environment: Mapping[str, str] = os.environ
    ) -> "KubernetesSettings":
        """The settings of a worker's environment (`DSEC_NAMESPACE`, `DSEC_IMAGE` …).

        Raises `InvalidRequest` naming the variable that cannot be read.
        """
        port = environment.get("DSEC_OUTPOST_PORT") or str(OUTPOST_PORT)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidRequest(f"DSEC_OUTPOST_PORT: {port!r} is no port number")
        cache_path = environment.get("DSEC_CACHE_HOST_PATH") or ""
        if cache_path and (not cache_path.startswith("/") or ".." in cache_path.split("/") or cache_path == "/"):
            raise InvalidRequest(
                f"DSEC_CACHE_HOST_PATH: {cache_path!r} is no folder on a node; write an absolute path without '..', "
                "for example /var/lib/dsec/cache"
            )
        return cls(
            pool=pool,
            access=access,
            namespace=environment.get("DSEC_NAMESPACE") or "default",
            image=environment.get("DSEC_IMAGE") or DEFAULT_IMAGE,
            priority_class=environment.get("DSEC_PRIORITY_CLASS") or "",
            service_account=environment.get("DSEC_SERVICE_ACCOUNT") or "",
            secret=environment.get("DSEC_SECRET") or "dsec-prefect",
            node_selector=environment.get("DSEC_NODE_SELECTOR") or "",
            tolerations=_read(environment, ENV_TOLERATIONS, read_tolerations, GPU_TOLERATIONS),
            topology_labels=_read(environment, ENV_TOPOLOGY_LABELS, variables.label_keys, TOPOLOGY_LABELS),
            pull_secrets=_read(environment, ENV_PULL_SECRETS, variables.object_names, ()),
            user=_read(environment, ENV_USER, variables.user_id, MEMBER_USER),
            shared_memory=_read(environment, ENV_SHARED_MEMORY, variables.size, ""),
            upload_seconds=_read(environment, ENV_UPLOAD, variables.whole_seconds, UPLOAD_SECONDS),
            store=environment.get(ENV_STORE) or "",
            cache_path=cache_path.rstrip("/"),
            port=int(port),
            pull_seconds=parse_duration(environment.get("DSEC_IMAGE_PULL") or "20m", field="DSEC_IMAGE_PULL"),
        )


def _read(environment: Mapping[str, str], variable: str, read: Callable[..., _T], default: _T) -> _T:
    """What `read` makes of a variable; the default where it is empty or not set."""
    text = environment.get(variable) or ""
    return read(text, variable=variable) if text else default
