"""Kueue's whole manager, built from its Go module, as an ordinary process on loopback.

Its custom resources come from the same module; its webhooks are left out (they only fill in what we write in full).
It insists on a certificate for its metrics in `/etc/kueue/metrics/certs`, whatever it is configured to: one is put
there for as long as it runs, and taken away with every folder that was not there before.
"""

import asyncio
import datetime
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.kube_plane import AT, NAMESPACE, Site, last_words, until
from benchmarks.kube_shapes import Quotas
from benchmarks.servers import free_port
from dsec_deployments.control_plane import binaries

VERSION = "v0.17.0"
MODULE = "sigs.k8s.io/kueue"
LOCAL_QUEUE, CLUSTER_QUEUE, FLAVOR = "bench", "bench", "default"
VERSIONED = "kueue.x-k8s.io/v1beta2"
GROUP = f"/apis/{VERSIONED}"
METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
QPS, BURST = 500, 1000
PRIORITIES = (0, 50, 90, 100, 200)
STOP_SECONDS = 15.0


def priority_class(priority: int) -> str:
    """The name of Kueue's own class of that priority; pods keep the default one, as ours do."""
    return f"bench-{priority}"


def why_not(progress: Callable[[str], None] = lambda _: None) -> str | None:
    """Why Kueue cannot be run here, in one line; None when it can. Builds it where it is missing."""
    try:
        binaries.provide(("kueue",), progress=progress)
        crds()
    except binaries.MissingBinaries:
        return binaries.why_not(("kueue",)) or f"{MODULE}@{VERSION} does not build with this Go"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"its custom resources cannot be had from {MODULE}@{VERSION}: {error}"
    return None


@asynccontextmanager
async def manager(here: Site, *, gpus: int, quotas: Quotas | None = None) -> AsyncIterator[None]:
    """A manager that runs and has one queue for all GPUs, or those of `quotas`; higher priorities evict lower ones."""
    program = await asyncio.to_thread(lambda: binaries.provide(("kueue",))["kueue"])
    folder = here.home / "kueue"
    folder.mkdir()
    certificate, key = self_signed()
    with metrics_certificate(certificate, key):
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "tls.key").write_bytes(key)
        config = folder / "config.json"
        config.write_text(json.dumps(configuration(folder, ports=[free_port() for _ in range(3)])))
        await _define(here, crds())
        log = folder / "kueue.log"
        words = [
            str(program),
            f"--config={config}",
            "--feature-gates=VisibilityOnDemand=false",
            "--zap-log-level=error",
            f"--kubeconfig={here.plane.kubeconfig}",
        ]
        process = _start(words, log)
        try:
            here.pids["kueue"] = process.pid
            await _queues(here, gpus, quotas, process, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)


def crds() -> list[dict[str, Any]]:
    """Kueue's custom resource definitions, from the module that the program is built from."""
    pins = binaries.pins()
    assert pins is not None
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    found = subprocess.run(command, cwd=pins / "kueue", capture_output=True, check=True)
    folder = Path(json.loads(found.stdout)["Dir"]) / "config" / "components" / "crd" / "bases"
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]


def configuration(folder: Path, *, ports: list[int]) -> dict[str, Any]:
    """The manager's: everything on loopback, as fast as our other clients may ask, batch Jobs alone."""
    health, metrics, webhook = ports
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": QPS, "burst": BURST},
        "controller": {
            "groupKindConcurrency": {
                "Job.batch": 5,
                "Workload.kueue.x-k8s.io": 5,
                "LocalQueue.kueue.x-k8s.io": 1,
                "ClusterQueue.kueue.x-k8s.io": 1,
                "ResourceFlavor.kueue.x-k8s.io": 1,
            }
        },
        "integrations": {"frameworks": ["batch/job"]},
    }


async def _define(here: Site, definitions: list[dict[str, Any]]) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for each in definitions:
        await here.api.apply(f"{path}/{each['metadata']['name']}", each, owner="bench", at=AT)

    async def established() -> bool:
        found, _ = await here.api.list(path)
        states = [{c["type"]: c["status"] for c in f.get("status", {}).get("conditions") or ()} for f in found]
        return len(found) >= len(definitions) and all(state.get("Established") == "True" for state in states)

    await until("Kueue's custom resources are established", established)
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}}, at=AT)


async def _queues(here: Site, gpus: int, quotas: Quotas | None, process: "subprocess.Popen[bytes]", log: Path) -> None:
    flavor = {"apiVersion": VERSIONED, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}, "spec": {}}
    await here.api.create(f"{GROUP}/resourceflavors", flavor, at=AT)
    for priority in PRIORITIES:
        named = {"metadata": {"name": priority_class(priority)}, "value": priority}
        level = {"apiVersion": VERSIONED, "kind": "WorkloadPriorityClass", **named}
        await here.api.create(f"{GROUP}/workloadpriorityclasses", level, at=AT)
    queues = cluster_queues(gpus, quotas)
    for queue in queues:
        await here.api.create(f"{GROUP}/clusterqueues", queue, at=AT)
        named = {"metadata": {"name": queue["metadata"]["name"] if quotas else LOCAL_QUEUE}}
        local = {"apiVersion": VERSIONED, "kind": "LocalQueue", **named}
        local["spec"] = {"clusterQueue": queue["metadata"]["name"]}
        await here.api.create(f"{GROUP}/namespaces/{NAMESPACE}/localqueues", local, at=AT)

    async def active() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"Kueue's manager ended with {process.returncode}: {last_words(log)}")
        found, _ = await here.api.list(f"{GROUP}/clusterqueues")
        states = [{c["type"]: c["status"] for c in f.get("status", {}).get("conditions") or ()} for f in found]
        return len(found) == len(queues) and all(state.get("Active") == "True" for state in states)

    await until("Kueue's queues are active", active)


def cluster_queues(gpus: int, quotas: Quotas | None) -> list[dict[str, Any]]:
    """One ClusterQueue for all GPUs, or those of `quotas`, as Kueue's own benchmark makes them."""
    if quotas is None:
        return [_cluster_queue(CLUSTER_QUEUE, {"nominalQuota": str(gpus)})]
    quota = {"nominalQuota": str(quotas.gpus), "borrowingLimit": str(quotas.borrowing)}
    return [
        _cluster_queue(name, quota, cohortName=cohort) for cohort, names in quotas.by_cohort().items() for name in names
    ]


def _cluster_queue(name: str, quota: Mapping[str, str], **more: str) -> dict[str, Any]:
    flavors = [{"name": FLAVOR, "resources": [{"name": "nvidia.com/gpu", **quota}]}]
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}],
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        **more,
    }
    return {"apiVersion": VERSIONED, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def self_signed() -> tuple[bytes, bytes]:
    """A certificate for localhost and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


@contextmanager
def metrics_certificate(certificate: bytes, key: bytes, folder: Path = METRICS_CERTIFICATES) -> Iterator[None]:
    """The files that the manager wants at a fixed place; what was there already is used and left alone.

    Raises `PermissionError` that says what to do.
    """
    if (folder / "tls.crt").exists():
        yield
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.key").write_bytes(key)
        (folder / "tls.crt").write_bytes(certificate)
    except PermissionError as error:
        raise PermissionError(
            f"Kueue reads its metrics certificate from {folder}, which cannot be written ({error.strerror}): put any "
            "tls.crt and tls.key there, run as root, or leave Kueue out (--systems plain,ours)"
        ) from error
    try:
        yield
    finally:
        for name in ("tls.crt", "tls.key"):
            (folder / name).unlink(missing_ok=True)
        for each in missing:
            os.rmdir(each)
