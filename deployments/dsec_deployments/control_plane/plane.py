"""Starting and stopping the control plane: idempotent, on loopback, everything it writes in one folder.

Processes are recorded as `dsec up` records its own, so a second start finds them and a stop leaves none behind. Each
one's port and files are under `HOME/control-plane`; `admin.kubeconfig` there opens it for any Kubernetes client.
"""

import json
import secrets
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_deployments import background
from dsec_deployments.control_plane import binaries

HOST = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 15.0
_ORDER = ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
"""In which they are stopped: who asks goes before who answers."""
_QPS, _BURST = 500, 1000


class ControlPlaneDown(DsecError):
    """The control plane did not come up, or a part of it ended."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """One that runs. `kubeconfig` is the path of an administrator's."""

    server: str
    token: str
    kubeconfig: str
    etcd_port: int
    api_port: int


def start(home: Path, *, clock: Clock, progress: Callable[[str], None] = lambda _: None) -> ControlPlane:
    """The control plane of this home, started if it does not run.

    Raises `MissingBinaries` when its programs are neither here nor can be built, `ControlPlaneDown` when it does not
    answer in time.
    """
    programs = binaries.provide(progress=progress)
    folder = home / "control-plane"
    folder.mkdir(parents=True, exist_ok=True)
    plane = _settled(folder)
    began = clock.monotonic()
    for name in reversed(_ORDER):
        if background.find(home, name) is None:
            progress(f"starting {name}")
            command = [str(programs[name]), *_arguments(name, folder, plane)]
            background.start(home, name, command, environment={}, log=folder / "logs" / f"{name}.log")
        if name == "kube-apiserver":
            _until_ready(home, folder, plane, began, clock, progress)
    return plane


def running(home: Path) -> ControlPlane | None:
    """The control plane of this home, if it answers."""
    folder = home / "control-plane"
    if not (folder / "plane.json").exists() or background.find(home, "kube-apiserver") is None:
        return None
    plane = _settled(folder)
    return plane if answers(plane, "/readyz") else None


def stop(home: Path, *, clock: Clock, purge: bool = False) -> int:
    """Stop every part that runs and wait until it has left its port; how many there were."""
    stopped = 0
    for name in _ORDER:
        stopped += stop_part(home, name, clock=clock)
    if purge and (home / "control-plane").exists():
        files.remove_tree(home / "control-plane", at="kube.plane.purge")
    return stopped


def stop_part(home: Path, name: str, *, clock: Clock) -> bool:
    """Stop one program of it; whether it ran. `start` brings it back on the same ports with the same data."""
    found = background.find(home, name)
    if found is not None:
        background.stop(found, grace_seconds=STOP_SECONDS, clock=clock)
        background.forget(home, name)
    return found is not None


def _settled(folder: Path) -> ControlPlane:
    """Ports, token and keys: chosen once for a folder, then read back."""
    record = folder / "plane.json"
    if record.exists():
        return ControlPlane(**json.loads(record.read_text()))
    etcd, peer, api = _free_ports(3)
    plane = ControlPlane(
        server=f"https://{HOST}:{api}",
        token=secrets.token_urlsafe(24),
        kubeconfig=str(folder / "admin.kubeconfig"),
        etcd_port=etcd,
        api_port=api,
    )
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    written = {
        "service-accounts.key": private,
        "service-accounts.pub": public,
        "tokens.csv": f"{plane.token},admin,admin,system:masters\n".encode(),
        "admin.kubeconfig": _kubeconfig(plane).encode(),
        "scheduler.json": _scheduler(plane).encode(),
        "peer-port": str(peer).encode(),
    }
    for name, content in written.items():
        files.write(folder / name, content, mode=0o600, at="kube.plane.write")
    files.publish(record, json.dumps(asdict(plane), indent=1).encode(), at="kube.plane.record")
    return plane


def _arguments(name: str, folder: Path, plane: ControlPlane) -> list[str]:
    kubeconfig, key = plane.kubeconfig, folder / "service-accounts.key"
    etcd = f"http://{HOST}:{plane.etcd_port}"
    if name == "etcd":
        peer = f"http://{HOST}:{(folder / 'peer-port').read_text()}"
        return [
            "--name", "dsec", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=dsec={peer}",
            "--log-level=warn",
        ]  # fmt: skip
    if name == "kube-apiserver":
        return [
            f"--etcd-servers={etcd}", f"--secure-port={plane.api_port}", f"--bind-address={HOST}",
            f"--advertise-address={HOST}", f"--cert-dir={folder / 'certificates'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={key}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
        ]  # fmt: skip
    if name == "kube-controller-manager":
        return [
            f"--kubeconfig={kubeconfig}", f"--service-account-private-key-file={key}",
            f"--root-ca-file={folder / 'certificates' / 'apiserver.crt'}",
            "--use-service-account-credentials=false", "--leader-elect=false", "--secure-port=0",
            "--controllers=*,-nodeipam,-cloud-node-lifecycle", f"--kube-api-qps={_QPS}", f"--kube-api-burst={_BURST}",
        ]  # fmt: skip
    if name == "kube-scheduler":
        return [f"--config={folder / 'scheduler.json'}", "--secure-port=0"]
    stages = Path(__file__).with_name("stages.yaml")
    return [
        f"--kubeconfig={kubeconfig}", f"--config={stages}", "--node-lease-duration-seconds=40",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
    ]  # fmt: skip


def _kubeconfig(plane: ControlPlane) -> str:
    cluster = {"server": plane.server, "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": plane.token}}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "admin"}}],
            "current-context": "simulated",
        },
        indent=1,
    )


def _scheduler(plane: ControlPlane) -> str:
    return json.dumps(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": plane.kubeconfig, "qps": _QPS, "burst": _BURST},
            "leaderElection": {"leaderElect": False},
        }
    )


def _until_ready(
    home: Path, folder: Path, plane: ControlPlane, began: float, clock: Clock, progress: Callable[[str], None]
) -> None:
    while not answers(plane, "/readyz"):
        waited = clock.monotonic() - began
        for name in ("etcd", "kube-apiserver"):
            if background.find(home, name) is None:
                raise ControlPlaneDown(f"{name} ended while starting; its last words are in {folder}/logs/{name}.log")
        if waited > START_SECONDS:
            raise ControlPlaneDown(f"the API server is not ready after {waited:.0f} s; see {folder}/logs")
        progress(f"API server at {plane.server}: starting, {waited:.0f} s")
        time.sleep(0.1)


def answers(plane: ControlPlane, path: str) -> bool:
    """Whether there is something at `path`."""
    context = ssl._create_unverified_context()
    request = urllib.request.Request(f"{plane.server}{path}", headers={"Authorization": f"Bearer {plane.token}"})
    try:
        with urllib.request.urlopen(request, timeout=2.0, context=context) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
