"""What Prefect loads to know DSec's blocks: the entry point `prefect.collections` names this module."""

from dsec_blocks.cache.node_cache import NodeCache
from dsec_blocks.checkpoints.block import CheckpointStore
from dsec_blocks.pool.block import GpuPool

__all__ = ["CheckpointStore", "GpuPool", "NodeCache"]
