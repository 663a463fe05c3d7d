"""A gang on its way through the pool: its state, where it sits, and how it left."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dsec_blocks.model.requests import GangRequest


class GangState(StrEnum):
    """Where a gang is. Only these are durable, so a crash falls back to one of them.

    waiting → reserved → launching → running → leaving → ended; running → evicting → leaving → waiting, or → reserved
    for a gang that goes on at once elsewhere.
    `reserved`: devices are held (or promised after victims leave), nothing started. `launching`: the claim is
    written and the cluster may be starting it. `leaving`: no process is left (or will be), the outcome is recorded
    and the Prefect state is still to be written.
    """

    WAITING = "waiting"
    RESERVED = "reserved"
    LAUNCHING = "launching"
    RUNNING = "running"
    EVICTING = "evicting"
    LEAVING = "leaving"
    ENDED = "ended"


HOLDING_STATES = frozenset({GangState.RESERVED, GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING})
"""States in which a gang may hold devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlacement:
    """One member of a gang: the node it is on and the devices it gets there, by UUID in NVML order."""

    node: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a whole gang goes; member i is on `members[i]`."""

    members: tuple[MemberPlacement, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device of the gang."""
        return tuple(uuid for member in self.members for uuid in member.devices)

    def to_json(self) -> list[dict[str, Any]]:
        """JSON-ready members."""
        return [{"node": m.node, "devices": list(m.devices)} for m in self.members]

    @classmethod
    def from_json(cls, members: list[dict[str, Any]]) -> "Placement":
        """The placement that `to_json` wrote."""
        return cls(members=tuple(MemberPlacement(node=m["node"], devices=tuple(m["devices"])) for m in members))


CARDS = "cards"
"""Of `Gang.launch`: node → the cards that the gang really has there, where only the node knows that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One flow run in the ledger. `attempt` counts admissions: it is the generation that fences everything older."""

    run_id: str
    name: str
    pool: str
    team: str
    request: GangRequest
    state: GangState
    submitted_at: float
    """First submit time; kept through every eviction."""
    eligible_at: float
    """Scheduled time: age counts from here."""
    attempt: int = 0
    placement: Placement | None = None
    admitted_at: float | None = None
    """When the current attempt's devices were reserved."""
    expires_at: float | None = None
    """Until when that reservation must be bound (user code running); None once it is."""
    launched_at: float | None = None
    """When the current attempt's user code was let through its start barrier."""
    first_commit_at: float | None = None
    """First checkpoint commit of the current attempt; ends its minimum run time."""
    last_commit_at: float | None = None
    last_step: int | None = None
    """Step of the newest commit, kept through evictions: what a new attempt resumes from."""
    reported_step: int | None = None
    """Step that the current attempt last reported."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What it last reported beside the step."""
    checkpoint_seconds: float | None = None
    """Measured: notice to devices free."""
    restart_seconds: float | None = None
    """Measured: claim to first step."""
    has_on_evict: bool = False
    evictions: int = 0
    infrastructure_restarts: int = 0
    user_retries: int | None = None
    """The user's own retries as read before the first claim; None stays None."""
    not_before: float | None = None
    """Backing off after a failed start until then."""
    launch: dict[str, Any] = field(default_factory=dict)
    """What the cluster adapter needs to find the gang again, and the `CARDS` that it found it with."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """How it left: kind (exited, evicted, cancelled, lost, failed-start), exit codes, message."""
    final_state: str | None = None
    """The Prefect state it ended in, once it has ended."""
    reason_code: str | None = None
    reason: str | None = None
    parent_run_id: str | None = None
    created_by: str = ""
    """Who started the run, as far as Prefect or a tag `user:NAME` says; empty is nobody known."""
    tags: tuple[str, ...] = ()
    ended_at: float | None = None
    attained_seconds: float = 0.0
    """Device-seconds that its earlier attempts had, counted anew from a lift."""
    waiting_since: float | None = None
    """When it last came back into the queue; None: never."""
    lifted: bool = False
    """Time sharing has given it its one lift."""
    conditional_until: float | None = None
    """The current attempt passed the head of line on the condition that it can be evicted for it from then on."""
    deployment: str = ""
    """Its deployment, or its flow if it has none, by id: what its history goes by."""
    expected_seconds: float | None = None
    """What runs like it had lasted when it came, or was last admitted: from the first start on; None: nothing known."""
    resumes_at: Placement | None = None
    """While it leaves to go on elsewhere, smaller or larger: where; its next attempt has that until `expires_at`."""
