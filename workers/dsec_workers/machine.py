"""Which nodes and devices a worker on this machine has: declared ones, or what NVML finds."""

from dsec_blocks.model.devices import Device, Node
from dsec_workers.settings import WorkerSettings


def nodes_of(settings: WorkerSettings) -> tuple[Node, ...]:
    """The declared nodes, or this machine as NVML sees it when none is declared."""
    if settings.nodes > 0:
        return declared_nodes(settings)
    from dsec_blocks.pool import probe_node

    return (probe_node(),)


def declared_nodes(settings: WorkerSettings) -> tuple[Node, ...]:
    """Nodes that exist by declaration only; each is its own NVLink domain, as an HGX board is."""
    return tuple(
        Node(
            name=f"node-{number}",
            devices=tuple(
                Device(
                    uuid=f"GPU-declared-{number}-{index}",
                    node=f"node-{number}",
                    index=index,
                    model=settings.gpu_model,
                    memory_bytes=settings.gpu_memory_bytes,
                    nvlink_domain=f"node-{number}",
                )
                for index in range(settings.gpus_per_node)
            ),
        )
        for number in range(settings.nodes)
    )
