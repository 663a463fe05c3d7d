"""The node's store: blobs, immutable views, refs; leases and tombstones instead of locks; limits that always hold."""

from dsec_blocks.cache.store.check import Violation, check, verify
from dsec_blocks.cache.store.evicting import evict
from dsec_blocks.cache.store.leases import hold, holders, pin, release, unpin
from dsec_blocks.cache.store.marks import Mark, Owner, Sight, owner_of
from dsec_blocks.cache.store.store import Limits, Store
from dsec_blocks.cache.store.sweep import Swept, sweep
from dsec_blocks.cache.store.usage import Usage, usage

__all__ = [
    "Limits", "Mark", "Owner", "Sight", "Store", "Swept", "Usage", "Violation", "check", "evict", "hold", "holders",
    "owner_of", "pin", "release", "sweep", "unpin", "usage", "verify",
]  # fmt: skip
