"""What a worker is told by its environment: where the ledger is, which cluster it drives, and its pace.

`prefect worker start -p POOL` takes no options of ours, so everything comes from `DSEC_*`, read once.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways.home import home_of, ledger_url_of
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.names import ENV_CLUSTER, ENV_LEDGER_URL
from dsec_blocks.model.units import parse_duration, parse_memory

LOCAL, KUBERNETES = "local", "kubernetes"
ENV_DRAIN, EVICT = "DSEC_DRAIN", "evict"
"""`DSEC_DRAIN=evict`: a worker that is stopped has its gangs checkpoint first (`dsec worker --evict` sets it)."""
ENV_REPLICAS = "DSEC_REPLICAS"
"""How many workers serve the pool with the same settings; the Helm chart says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker's settings. `nodes` 0 means: ask NVML; otherwise that many nodes are declared.

    What only the Kubernetes adapter needs is read by that (`clusters.kubernetes.settings`).
    """

    home: Path
    ledger_url: str
    holder: str
    """Who this worker is in the leases table; unique per process."""
    cluster: str = LOCAL
    """Which adapter starts the gangs: processes on this machine, or Jobs on a Kubernetes cluster."""
    nodes: int = 0
    gpus_per_node: int = 0
    gpu_model: str = "declared"
    gpu_memory_bytes: int = 80 * 2**30
    lease_ttl_seconds: float = 6.0
    poll_seconds: float = 1.0
    sweep_seconds: float = 15.0
    """How often every waiting run is read again, instead of only those that became due."""
    reservation_seconds: float = 120.0
    """A reservation that is not bound by then expires whole."""
    infrastructure_restarts: int = 3
    evict_on_drain: bool = False
    drain_seconds: float = 3.0
    """What a worker that drains still finishes, at most; then it resigns, and is gone within five seconds in all."""
    linger_seconds: float = 60.0
    """A gang that lives this long after its run's final state is stopped."""
    report_seconds: float = 30.0
    """The least time between two pool maps."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """Where `/health`, `/ready` and `/metrics` are answered; None: nowhere. 0: at any free port, which is logged."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "WorkerSettings":
        """The settings in `environment`; raises `InvalidRequest` naming the variable that cannot be read."""
        home, ledger_url = home_of(environment), ledger_url_of(environment)
        return cls(
            home=home,
            ledger_url=_shareable(ledger_url, replicas=_count(environment, ENV_REPLICAS, 1)),
            cluster=_cluster(environment),
            holder=environment.get("DSEC_HOLDER") or f"{socket.gethostname()}-{os.getpid()}",
            nodes=_count(environment, "DSEC_NODES", 0),
            gpus_per_node=_count(environment, "DSEC_GPUS_PER_NODE", 0),
            gpu_model=environment.get("DSEC_GPU_MODEL") or "declared",
            gpu_memory_bytes=parse_memory(environment.get("DSEC_GPU_MEMORY") or "80GiB", field="DSEC_GPU_MEMORY"),
            lease_ttl_seconds=_seconds(environment, "DSEC_LEASE_TTL", 6.0),
            poll_seconds=_seconds(environment, "DSEC_POLL", 1.0),
            sweep_seconds=_seconds(environment, "DSEC_SWEEP", 15.0),
            reservation_seconds=_seconds(environment, "DSEC_RESERVATION", 120.0),
            infrastructure_restarts=_count(environment, "DSEC_INFRASTRUCTURE_RESTARTS", 3),
            evict_on_drain=_evicts(environment),
            linger_seconds=_seconds(environment, "DSEC_LINGER", 60.0),
            report_seconds=_seconds(environment, "DSEC_REPORT", 30.0),
            metrics_host=environment.get("DSEC_METRICS_HOST") or "127.0.0.1",
            metrics_port=_port(environment, "DSEC_METRICS_PORT"),
        )


def _cluster(environment: Mapping[str, str]) -> str:
    name = environment.get(ENV_CLUSTER) or LOCAL
    if name not in (LOCAL, KUBERNETES):
        raise InvalidRequest(f"{ENV_CLUSTER}: {name!r} is neither {LOCAL!r} nor {KUBERNETES!r}")
    return name


def _evicts(environment: Mapping[str, str]) -> bool:
    text = environment.get(ENV_DRAIN) or ""
    if text not in ("", EVICT):
        raise InvalidRequest(f"{ENV_DRAIN}: {text!r} is not {EVICT!r}; without it gangs run on when their worker stops")
    return text == EVICT


def _shareable(ledger_url: str, *, replicas: int) -> str:
    if replicas > 1 and ledger_url.startswith("sqlite"):
        path = ledger_url.removeprefix("sqlite:///")
        raise InvalidRequest(
            f"{ENV_LEDGER_URL}: {replicas} workers cannot share the SQLite file {path}; "
            "give them a PostgreSQL database (postgresql://…), or run one replica"
        )
    return ledger_url


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if not text:
        return default
    if not text.strip().isdigit():
        raise InvalidRequest(f"{name}: {text!r} is not a whole number")
    return int(text)


def _port(environment: Mapping[str, str], name: str) -> int | None:
    text = (environment.get(name) or "").strip()
    if text and not (text.isdigit() and int(text) <= 65535):
        raise InvalidRequest(f"{name}: {text!r} is no port; give 1 to 65535, or 0 for any free one")
    return int(text) if text else None


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    return parse_duration(text, field=name) if text else default
