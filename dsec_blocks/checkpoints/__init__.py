"""Checkpoints that survive a kill at any instruction: the commit protocol, the spool, the uploader, the block.

`heads` is pure; `places` are where checkpoints lie; `commit_log` is the protocol; `session` is what a rank uses.
"""

from typing import TYPE_CHECKING, Any

from dsec_blocks.checkpoints.session import Checkpoints
from dsec_blocks.checkpoints.stores import StoreAddress, open_store

if TYPE_CHECKING:
    from dsec_blocks.checkpoints.block import CheckpointStore

__all__ = ["CheckpointStore", "Checkpoints", "StoreAddress", "open_store"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointStore":  # a Prefect block: only who asks for it pays for importing Prefect
        from dsec_blocks.checkpoints.block import CheckpointStore

        return CheckpointStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
