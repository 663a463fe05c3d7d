"""Devices by declaration: a pool to try, test and demonstrate with, on a machine that has no GPU.

They are as exclusive as real ones (the local cluster locks a file for each) and keep their UUIDs for ever, because
these are made of node and index.
"""

from dsec_blocks.model.devices import Device, Node


def declared_nodes(*, nodes: int, gpus_per_node: int, model: str, memory_bytes: int) -> tuple[Node, ...]:
    """`nodes` nodes called node-0, node-1 …, each with `gpus_per_node` devices in one NVLink domain."""
    return tuple(
        Node(
            name=name,
            devices=tuple(
                Device(
                    uuid=f"GPU-declared-{number}-{index}",
                    node=name,
                    index=index,
                    model=model,
                    memory_bytes=memory_bytes,
                    nvlink_domain=name,
                )
                for index in range(gpus_per_node)
            ),
        )
        for number in range(nodes)
        for name in [f"node-{number}"]
    )
