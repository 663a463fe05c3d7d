"""Which nodes and devices a worker on this machine has: declared ones, or what NVML finds."""

from dsec_blocks.model.devices import Node
from dsec_blocks.pool import declared_nodes, probe_node
from dsec_workers.settings import WorkerSettings


def nodes_of(settings: WorkerSettings) -> tuple[Node, ...]:
    """The declared nodes, or this machine as NVML sees it when none is declared."""
    if settings.nodes == 0:
        return (probe_node(),)
    return declared_nodes(
        nodes=settings.nodes,
        gpus_per_node=settings.gpus_per_node,
        model=settings.gpu_model,
        memory_bytes=settings.gpu_memory_bytes,
    )
