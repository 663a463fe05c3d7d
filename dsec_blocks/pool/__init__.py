"""The GPUs of a pool: found by NVML, or declared where there are none.

`nvml` asks the driver (in a child that can be killed), `declared` makes devices up, `block` is the GpuPool block.
"""

from typing import TYPE_CHECKING, Any

from dsec_blocks.pool.declared import declared_nodes
from dsec_blocks.pool.nvml import probe_node

if TYPE_CHECKING:
    from dsec_blocks.pool.block import GpuPool

__all__ = ["GpuPool", "declared_nodes", "probe_node"]


def __getattr__(name: str) -> Any:
    if name == "GpuPool":  # a Prefect block: only who asks for it pays for importing Prefect
        from dsec_blocks.pool.block import GpuPool

        return GpuPool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
