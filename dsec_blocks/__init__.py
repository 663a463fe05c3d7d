"""DSec: one elastic GPU pool for training and inference, on Prefect.

    from dsec_blocks import gang, current_gang

Names are resolved on first use, so that importing this package stays light (Prefect loads collections often).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers, to which `gang` would otherwise be the submodule; at run time `__getattr__` does it.
    from dsec_blocks.cache import NodeCache, open_cache
    from dsec_blocks.checkpoints import CheckpointStore
    from dsec_blocks.gang import current_gang, gang, run
    from dsec_blocks.model.errors import DsecError, Evicted
    from dsec_blocks.pool import GpuPool

__version__ = "0.1.0"

_PUBLIC = {
    "gang": "dsec_blocks.gang",
    "current_gang": "dsec_blocks.gang",
    "run": "dsec_blocks.gang",
    "CheckpointStore": "dsec_blocks.checkpoints",
    "GpuPool": "dsec_blocks.pool",
    "NodeCache": "dsec_blocks.cache",
    "open_cache": "dsec_blocks.cache",
    "DsecError": "dsec_blocks.model.errors",
    "Evicted": "dsec_blocks.model.errors",
}

__all__ = [
    "CheckpointStore",
    "DsecError",
    "Evicted",
    "GpuPool",
    "NodeCache",
    "current_gang",
    "gang",
    "open_cache",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dsec_blocks' has no attribute {name!r}")
    if _PUBLIC[name] == "dsec_blocks.cache":
        import_module("dsec_blocks.gang")  # what is acquired inside a gang is told to it
    return getattr(import_module(_PUBLIC[name]), name)
