"""A Kubernetes cluster on this machine for a pool: a real control plane, and nodes whose pods are processes.

`dsec up --kubernetes simulated` and `dsec demo --kubernetes` start it and find it again; `dsec down` stops it. What it
knows stays in the home, so that runs resume after the next start.
"""

import time
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.units import parse_memory
from dsec_deployments import background
from dsec_deployments.control_plane import binaries, plane, process_nodes
from dsec_deployments.control_plane.plane import ControlPlane, ControlPlaneDown
from dsec_deployments.control_plane.pool import NAMESPACE
from dsec_deployments.control_plane.process_nodes import NoProcessNodes
from dsec_deployments.installation import DEFAULT_GPUS, DEFAULT_MEMORY, DEFAULT_MODEL, DEFAULT_NODES, Installation

ACCOUNT_SECONDS = 60.0
Tell = Callable[[str], None]


def require(*, progress: Tell) -> None:
    """See to it that everything is here, before anything is started; what is missing and can be built is built.

    Raises `NoProcessNodes` and `MissingBinaries`, each with the one line that says what is missing.
    """
    reason = process_nodes.why_not()
    if reason is not None:
        raise NoProcessNodes(reason)
    binaries.provide(progress=progress)


def bring_up(wanted: Installation, home: Path, *, clock: Clock, progress: Tell, note: Tell) -> ControlPlane:
    """The cluster of this home with the nodes that were declared; what runs already is left alone."""
    ran = plane.running(home) is not None
    started = plane.start(home, clock=clock, progress=progress)
    _until_pods_can_be_made(started, clock, progress)
    note(f"Kubernetes: {'runs' if ran else 'started'} at {started.server} (KUBECONFIG={started.kubeconfig})")
    had = background.find(home, process_nodes.NAME)
    running = process_nodes.start(home, started, clock=clock, progress=progress)
    names = process_nodes.put(
        home,
        started,
        nodes=wanted.nodes or DEFAULT_NODES,
        gpus=DEFAULT_GPUS if wanted.gpus is None else wanted.gpus,
        model=wanted.gpu_model or DEFAULT_MODEL,
        memory_bytes=parse_memory(wanted.gpu_memory or DEFAULT_MEMORY, field="--gpu-memory"),
        progress=progress,
    )
    note(f"process nodes: {'run' if had else 'started'} (pid {running.process.pid}): {', '.join(names)}")
    return started


def bring_down(home: Path, *, clock: Clock, progress: Tell, note: Tell) -> None:
    """Stop nodes, pods and control plane; what is not running is fine."""
    progress("process nodes: stopping")
    if process_nodes.stop(home, clock=clock):
        note("process nodes: stopped, with all pods")
    progress("Kubernetes: stopping")
    if stopped := plane.stop(home, clock=clock):
        note(f"Kubernetes: stopped ({stopped} processes)")


def _until_pods_can_be_made(started: ControlPlane, clock: Clock, progress: Tell) -> None:
    """The controllers make each namespace's account; without it the API server refuses pods."""
    began = clock.monotonic()
    while not plane.answers(started, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"):
        waited = clock.monotonic() - began
        if waited > ACCOUNT_SECONDS:
            raise ControlPlaneDown(f"the controllers made no service account within {waited:.0f} s; see their log")
        progress(f"Kubernetes: its controllers start, {waited:.0f} s")
        time.sleep(0.1)
