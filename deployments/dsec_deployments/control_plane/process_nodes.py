"""Nodes whose pods run as processes of this machine: the kubelet stand-in, started, given its nodes, and stopped.

The stand-in is a program of the repository's tests (`tests/fakes/kubelet`), so it is treated as any other program: by
its command line and by the JSON that its control socket takes. Nothing here imports it.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import httpx

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.names import ENV_CACHE_DIR, ENV_STORE
from dsec_deployments import background
from dsec_deployments.background import Background
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.control_plane.pool import NODE_LABEL
from dsec_deployments.control_plane.simulated_nodes import GPU_MEMORY_LABEL, GPU_MODEL_LABEL
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess

NAME = "process-nodes"
GPU = "nvidia.com/gpu"
START_SECONDS, STOP_SECONDS, ORDER_SECONDS = 90.0, 30.0, 120.0
_LONGEST_SOCKET_PATH = 107
Tell = Callable[[str], None]


class NoProcessNodes(DsecError):
    """Pods cannot be run as processes here."""

    exit_code = 3


def why_not() -> str | None:
    """One line that says why pods cannot run as processes here; None when they can."""
    if find_spec("kubernetes_asyncio") is None:
        return "gangs on Kubernetes need more packages: pip install 'dsec[kubernetes]'"
    if _checkout() is not None:
        return None
    return (
        "pods run as processes by the kubelet stand-in of DSec's repository (tests/fakes/kubelet), which is not here; "
        "install DSec from a clone (`make venv`)"
    )


def start(home: Path, plane: ControlPlane, *, clock: Clock, progress: Tell = lambda _: None) -> Background:
    """The stand-in of this home, started if it does not run, ready to take nodes.

    Raises `NoProcessNodes` when it is not here or does not come up.
    """
    checkout, reason = _checkout(), why_not()
    if checkout is None or reason is not None:
        raise NoProcessNodes(str(reason))
    if len(os.fsencode(_control(home))) > _LONGEST_SOCKET_PATH:
        raise NoProcessNodes(
            f"{home} is too long a path for sockets in it; name a shorter one with DSEC_HOME (at most "
            f"{_LONGEST_SOCKET_PATH - len(os.fsencode(_control(home))) + len(os.fsencode(home))} bytes)"
        )
    running = background.find(home, NAME)
    if running is None:
        command = [sys.executable, "-m", "tests.fakes.kubelet", "--kubeconfig", plane.kubeconfig]
        path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
        log = home / "logs" / f"{NAME}.log"
        running = background.start(
            home, NAME, [*command, "--folder", str(_folder(home))], environment={"PYTHONPATH": path}, log=log
        )
    began = clock.monotonic()
    while not _answers(home):
        waited = clock.monotonic() - began
        if not background.alive(running) or waited > START_SECONDS:
            raise NoProcessNodes(f"process nodes did not start within {waited:.0f} s; see {running.log}")
        progress(f"process nodes: starting, {waited:.0f} s")
        time.sleep(0.1)
    return running


def put(
    home: Path, plane: ControlPlane, *, nodes: int, gpus: int, model: str, memory_bytes: int, progress: Tell
) -> list[str]:
    """Have exactly `nodes` nodes with `gpus` GPUs each, Ready; those that are there stay as they are. Their names."""
    names = [f"node-{number}" for number in range(nodes)]
    asyncio.run(_remove_all_but(names, plane))
    with _client(home, ORDER_SECONDS) as client:
        for name in names:
            progress(f"process nodes: {name} joins")
            answer = client.post("/nodes", json=_spec(name, home, gpus=gpus, model=model, memory_bytes=memory_bytes))
            if answer.is_error:
                raise NoProcessNodes(f"node {name} did not join: {answer.text.strip()}")
    return names


def cards(home: Path) -> dict[str, list[str]]:
    """The cards that each pod on a node was given, by the pod's uid; pods without any, and ended ones, have none."""
    with _client(home, ORDER_SECONDS) as client:
        found = client.get("/pods").raise_for_status().json()
    return {pod["uid"]: sorted(uuid for given in pod["devices"].values() for uuid in given) for pod in found}


def stop(home: Path, *, clock: Clock) -> bool:
    """Stop the stand-in with every process of every pod; whether it ran."""
    running = background.find(home, NAME)
    if running is not None:
        background.stop(running, grace_seconds=STOP_SECONDS, clock=clock)
        background.forget(home, NAME)
    return running is not None


def _spec(name: str, home: Path, *, gpus: int, model: str, memory_bytes: int) -> Mapping[str, Any]:
    """What the stand-in is told of a node. Checkpoints and the cache are in this machine's home, not in the pod."""
    inherited = {"PYTHONPATH": path} if (path := os.environ.get("PYTHONPATH")) else {}
    return {
        "name": name,
        "devices": {GPU: [f"GPU-{uuid5(NAMESPACE_DNS, f'{name}/{index}')}" for index in range(gpus)]},
        "labels": {
            NODE_LABEL: "true",
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(gpus),
            GPU_MODEL_LABEL: model,
            GPU_MEMORY_LABEL: str(memory_bytes // 2**20),
        },
        "image_env": {
            ENV_STORE: f"file://{home / 'checkpoints'}",
            ENV_CACHE_DIR: str(home / "cache"),
            **inherited,
        },
    }


async def _remove_all_but(names: list[str], plane: ControlPlane) -> None:
    """Nodes of an earlier start, which asked for more."""
    async with await Api.connect(ClusterAccess(kubeconfig=plane.kubeconfig)) as api:
        found, _ = await api.list("/api/v1/nodes", labels=f"{NODE_LABEL}=true")
        for name in {node["metadata"]["name"] for node in found} - set(names):
            await api.delete(f"/api/v1/nodes/{name}", at="up.process_node.remove")


def _answers(home: Path) -> bool:
    try:
        with _client(home, 5.0) as client:
            return client.get("/pods").status_code == httpx.codes.OK
    except httpx.TransportError:  # the socket's file is there a moment before somebody listens
        return False


def _client(home: Path, seconds: float) -> httpx.Client:
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(_control(home))), base_url="http://kubelet", timeout=seconds
    )


def _control(home: Path) -> Path:
    return _folder(home) / "control.sock"


def _folder(home: Path) -> Path:
    return home / NAME


def _checkout() -> Path | None:
    """The clone that this package is installed from; None for an installed package without one."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "tests" / "fakes" / "kubelet" / "__main__.py").exists() else None
