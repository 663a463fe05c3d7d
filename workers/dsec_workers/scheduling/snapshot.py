"""What one scheduling cycle sees: records from the ledger and the cluster, and the arrays made of them.

Records come first, because they are what a test writes down and what the ledger stores; `Snapshot` is built from
them and adds the numpy arrays over nodes that the cycle works on.
"""

from dataclasses import dataclass

from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import GangRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedGang:
    """A gang that waits. Times are seconds since the epoch.

    `wait_before` is the reason the worker already knows (unknown parent wait, backing off), see `not_before`.
    """

    run_id: str
    team: str
    request: GangRequest
    submitted_at: float
    eligible_at: float
    attempt: int = 0
    evictions: int = 0
    not_before: float | None = None
    parent_run_id: str | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGang:
    """A gang that holds devices: reserved, launching, running or evicting."""

    run_id: str
    team: str
    request: GangRequest
    placement: Placement
    submitted_at: float
    started_at: float
    """When this attempt was admitted."""
    first_commit_at: float | None = None
    last_commit_at: float | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float | None = None
    has_on_evict: bool = False
    evictions: int = 0
    evicting: bool = False
    evicting_for: str | None = None
    """The gang that its devices are promised to, when it is being evicted."""
    promised: bool = False
    """It holds its devices only behind victims that have not left yet."""
    conditional_until: float | None = None
    """A passer's condition: the head of line may evict it from then on, at any priority."""
