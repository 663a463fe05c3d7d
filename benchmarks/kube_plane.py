"""A fresh control plane with KWOK nodes for each measurement, and what its processes and its API server have done.

Each system gets one of its own, so that none inherits what another has left in etcd; all are started and loaded the
same way, by the same programs, one after the other on the same machine.
"""

import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.kube_shapes import GPUS_PER_NODE
from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments import background
from dsec_deployments.control_plane import plane, simulated_nodes
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess

AT = "bench.kube"
NAMESPACE = "bench"
SUBMITTERS = 16
"""Requests in flight of whoever submits, the same for all systems."""
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
PATIENCE_SECONDS = 120.0


@dataclass(kw_only=True)
class Site:
    """A control plane that runs, an administrator's client, and processes whose time is counted beside its own."""

    home: Path
    plane: ControlPlane
    api: Api
    pids: dict[str, int] = field(default_factory=dict)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time of each process and its children so far."""
        found = {}
        for name, pid in self.pids.items():
            try:
                found[name] = sum(map(_cpu_of, [own := psutil.Process(pid), *own.children(recursive=True)]))
            except psutil.NoSuchProcess:
                continue
        return found

    async def requests(self) -> int:
        """Requests that the API server has answered so far, watches left out."""
        words = await asyncio.to_thread(self._metrics)
        counted = 0.0
        for line in words.splitlines():
            if line.startswith("apiserver_request_total{") and 'verb="WATCH"' not in line:
                counted += float(line.rsplit(" ", 1)[1])
        return int(counted)

    def _metrics(self) -> str:
        import ssl

        context = ssl._create_unverified_context()
        headers = {"Authorization": f"Bearer {self.plane.token}"}
        request = urllib.request.Request(f"{self.plane.server}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return str(answer.read().decode())


def _cpu_of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


@asynccontextmanager
async def site(nodes: int, gpus_per_node: int = GPUS_PER_NODE) -> AsyncIterator[Site]:
    """A new control plane with `nodes` nodes, all Ready; gone with its folder at the end."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="dsec-bench-kube-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        try:
            found = await asyncio.to_thread(plane.start, home, clock=clock)
            async with await Api.connect(ClusterAccess(kubeconfig=found.kubeconfig)) as api:
                pids = {name: b.process.pid for name in PARTS if (b := background.find(home, name)) is not None}
                here = Site(home=home, plane=found, api=api, pids=pids)
                await _furnish(here, nodes, gpus_per_node)
                yield here
        finally:
            plane.stop(home, clock=clock)


async def _furnish(here: Site, nodes: int, gpus: int) -> None:
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}, at=AT)
    names = [f"node-{i:04}" for i in range(nodes)]

    async def add(name: str) -> None:
        await here.api.create("/api/v1/nodes", simulated_nodes.manifest(name, gpus=gpus), at=AT)

    await at_once(names, add)

    async def ready() -> bool:
        found, _ = await here.api.list("/api/v1/nodes")
        return len(found) == nodes and all(map(_is_open, found))

    await until("all nodes are Ready", ready)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"

    async def account() -> bool:
        return bool((await here.api.list(accounts))[0])

    await until("the namespace has its service account", account)


def _is_open(node: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
    return conditions.get("Ready") == "True" and not (node.get("spec") or {}).get("taints")


async def at_once(items: Sequence[Any], work: Callable[[Any], Awaitable[None]], *, limit: int = SUBMITTERS) -> None:
    """Do `work` on each item, in order, so many at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(limit)))


async def until(what: str, found: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until it is so.

    Raises `TimeoutError` naming what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not await found():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.2)


def last_words(log: Path, lines: int = 5) -> str:
    """The end of a log, for a message."""
    return json.dumps(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "nothing"
