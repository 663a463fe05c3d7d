"""Durable state on SQLite (one machine) or PostgreSQL (more): where workers, flows and the command line meet.

Nothing is decided here. The ledger makes each step of a gang's life atomic, fenced and repeatable, so that any process
may die at any instruction and the next one finds a state from which it can go on.
"""

from dsec_blocks.ledger.arrivals import Arrivals
from dsec_blocks.ledger.batch import AdmissionRequest
from dsec_blocks.ledger.changes import Reading
from dsec_blocks.ledger.check import Violation
from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.ledger.evictions import Eviction
from dsec_blocks.ledger.figures import DeviceCount, Figures
from dsec_blocks.ledger.inventories import CachedBundle, Inventory
from dsec_blocks.ledger.leadership import Election, Lease
from dsec_blocks.ledger.ledger import Ledger
from dsec_blocks.ledger.policies import ACTIVE, SHADOW, SHIPPED_VERSION, PolicyRecord
from dsec_blocks.ledger.prefetches import Prefetch, PrefetchState
from dsec_blocks.ledger.reservations import Holding
from dsec_blocks.ledger.resuming import Resumption
from dsec_blocks.ledger.transaction import Fence
from dsec_blocks.ledger.wishes import STANDING_KINDS, WISH_KINDS, Wish

__all__ = [
    "ACTIVE", "SHADOW", "SHIPPED_VERSION", "STANDING_KINDS", "WISH_KINDS", "AdmissionRequest", "Arrivals",
    "CachedBundle", "Decision", "DeviceCount", "Election", "Eviction", "Fence", "Figures", "Holding", "Inventory",
    "Lease", "Ledger", "PolicyRecord", "Prefetch", "PrefetchState", "Reading", "Resumption", "Violation", "Wish",
]  # fmt: skip
