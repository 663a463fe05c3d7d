"""Which nodes and devices a worker on this machine has: declared ones, or what NVML finds, and what is beside them.

Declared nodes are parts of one machine, so each is given an equal part of its processors and memory: members that say
what they need are not promised the same processor twice.
"""

from collections.abc import Sequence
from dataclasses import replace

import psutil

from dsec_blocks.model.devices import Node
from dsec_blocks.pool import declared_nodes, probe_node
from dsec_workers.settings import WorkerSettings


def nodes_of(settings: WorkerSettings) -> tuple[Node, ...]:
    """The declared nodes, or this machine as NVML sees it when none is declared."""
    if settings.nodes == 0:
        found: tuple[Node, ...] = (probe_node(),)
    else:
        found = declared_nodes(
            nodes=settings.nodes,
            gpus_per_node=settings.gpus_per_node,
            model=settings.gpu_model,
            memory_bytes=settings.gpu_memory_bytes,
        )
    return sharing(found, cpus=len(psutil.Process().cpu_affinity()), memory_bytes=psutil.virtual_memory().total)


def sharing(nodes: Sequence[Node], *, cpus: float, memory_bytes: int) -> tuple[Node, ...]:
    """The nodes, each with an equal part of one machine's processors and memory."""
    parts = max(1, len(nodes))
    each = round(cpus / parts, 3)
    return tuple(replace(node, cpus=each, memory_bytes=memory_bytes // parts) for node in nodes)
