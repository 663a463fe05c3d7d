"""What the Kubernetes adapter is told: which cluster, which namespace, and what our pods are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.node_model import TOPOLOGY_LABELS

OUTPOST_PORT = 7077
SCRATCH = "/dsec"
"""Where a member's pod keeps its gang directory: a volume of its own, so that the root file system may be read-only."""
TERMINATION_LOG = "/dev/termination-log"
DEFAULT_IMAGE = "dsec:latest"


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
    port: int = OUTPOST_PORT
    upload_seconds: int = 60
    """What a pod has after its gang's grace, for what is still in its spool."""
    topology_labels: tuple[str, ...] = TOPOLOGY_LABELS
    tolerations: tuple[Mapping[str, Any], ...] = ()
    node_selector: str = ""
    """A label selector: which of the cluster's nodes are the pool's. Empty: all."""
    has_outposts: bool = True
    """False where containers run in name only (KWOK nodes): members are then believed by their pods' phases alone."""
    creates_at_once: int = 32
    """Requests in flight, over all gangs."""
