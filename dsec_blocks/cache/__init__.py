"""Data that is already there when a job starts: content-addressed blobs on the node, filled from any origin.

from dsec_blocks.cache import open_cache

with open_cache().acquire("s3://models/llama-3-8b") as bundle:
load(bundle.path)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec_blocks.cache.acquiring import Cache
    from dsec_blocks.cache.lease import Acquired, Lease
    from dsec_blocks.cache.node_cache import NodeCache
    from dsec_blocks.cache.opening import open_cache
    from dsec_blocks.cache.settings import CacheSettings, Revalidate
    from dsec_blocks.cache.weights import load_weights

_PUBLIC = {
    "Acquired": "dsec_blocks.cache.lease",
    "Cache": "dsec_blocks.cache.acquiring",
    "CacheSettings": "dsec_blocks.cache.settings",
    "Lease": "dsec_blocks.cache.lease",
    "NodeCache": "dsec_blocks.cache.node_cache",
    "Revalidate": "dsec_blocks.cache.settings",
    "load_weights": "dsec_blocks.cache.weights",
    "open_cache": "dsec_blocks.cache.opening",
}

__all__ = ["Acquired", "Cache", "CacheSettings", "Lease", "NodeCache", "Revalidate", "load_weights", "open_cache"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)  # a Prefect block: only who asks for it pays for Prefect
