"""The protocol every cluster adapter fulfils, and the values it speaks in.

A gang on a cluster is known by `GangKey` (run and attempt). Every call may be repeated: launching a key that exists
adopts it, stopping one that is gone succeeds. What happened is told by `events()` and, after a restart, by `adopt()`;
an event may be delivered more than once, and the ledger decides what is news.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang, Placement
from dsec_blocks.model.notices import Notice
from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest

EXIT_OVERTAKEN = 75
"""A flow process that finds its run ended, or no longer claimed, leaves with this before any user code."""


class GangKey(NamedTuple):
    """Which attempt of which flow run."""

    run_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the worker has just read and the flow process would ask for, as the API says it. None is: ask."""

    read_at: float
    """Seconds since the epoch; when the deployment was asked for. The storage may be a few seconds older."""
    deployment: Mapping[str, Any] | None = None
    default_storage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """All that a cluster needs to start one attempt of a gang.

    `env` is the flow process's environment, complete except for the rank variables and DSEC_*; `command` is None for
    "run the flow run in the pre-imported engine", else the shell command that runs it. `working_dir` None means a
    fresh directory under the gang's own.
    """

    key: GangKey
    name: str
    request: GangRequest
    placement: Placement
    env: Mapping[str, str]
    command: str | None = None
    working_dir: str | None = None
    hold_start: bool = False
    """Prepare everything but keep the start barrier shut until the devices are free (a preemptor's overlap)."""
    job_manifest: Mapping[str, Any] | None = None
    """On Kubernetes: the pool's own Job, on which a gang's are built. None is nothing special."""
    start_timeout_seconds: float = 120.0
    """A launch whose barrier has not opened by then fails whole; with `hold_start` it must cover the victims' grace."""
    known: Known | None = None
    team: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """On Kubernetes: what Jobs and pods are labelled with, besides what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """Something that happened to one gang, in seconds since the epoch."""

    key: GangKey
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(ClusterEvent):
    """Every member is there and holds its devices; user code was let through the barrier."""

    cards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By node, where devices are reserved by count and only the node knows which cards they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing(ClusterEvent):
    """The start takes long although nothing is wrong: a node pulls an image, say. Told again while it goes on."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(ClusterEvent):
    """The gang reported progress: a step, metrics such as a loss, or that it can answer an eviction."""

    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_on_evict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(ClusterEvent):
    """A checkpoint of `step` was committed to its store."""

    step: int
    seconds: float
    """From the snapshot's beginning to the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshotting(ClusterEvent):
    """The gang has answered a notice and is writing its snapshot; it will leave within its grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesReleased(ClusterEvent):
    """No process of the gang uses a device any more; the flow's own process and the uploader may still live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(ClusterEvent):
    """No process of the gang is left and nothing is left to upload.

    `flow_exit` is the exit status of the flow's own process (negative: killed by that signal; None: it never
    started). `member_exits` are the members' and `lost_member` is the first member that died by itself.
    `notice` is the kind of notice it left on, if any, and `reason` why it was given where that was not our doing.
    `start_failure` says why a launch never got to its barrier.
    """

    flow_exit: int | None
    member_exits: Mapping[int, int] = field(default_factory=dict)
    lost_member: int | None = None
    notice: str | None = None
    reason: str | None = None
    last_commit_step: int | None = None
    start_failure: str | None = None
    timed_out: bool = False
    """Whether it was stopped because its longest run time was over. The adapter enforces that too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGang:
    """A gang that the cluster knows of after a restart, with the events that tell how far it got.

    An empty `launch` says that only a part of it was created: launching it again completes it. With `too_new` nothing
    else of it is known, and nobody here may touch it.
    """

    key: GangKey
    placement: Placement
    launch: Mapping[str, Any]
    events: tuple[ClusterEvent, ...]
    too_new: str | None = None
    """Why this DSec cannot go on with it: a newer one has made it, or so it says; anybody may write that on a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """How the adapter fares with its cluster."""

    away: bool = False
    """The cluster does not answer: gangs run on, nothing starts; no restart of the worker cures that."""
    hangs: tuple[str, ...] = ()
    """What of the adapter itself has stood still for too long, each with why: only a restart cures that."""


class Allowance(Protocol):
    """What the cluster's owners leave for gangs beside the devices there are, asked before an admission; for one cycle.

    On Kubernetes: the quotas and limit ranges of the namespaces that gangs run in.
    """

    def reason(self, gang: Gang) -> Reason | None:
        """Why the waiting gang may not be admitted; None when it may."""

    def take(self, gang: Gang, placement: Placement, leaving: Collection[str]) -> bool:
        """Count the gang, once the runs that are `leaving` for it have left; False when there is no room for it."""


class Cluster(Protocol):
    """Starts, warns and stops gangs."""

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes and devices there are now, with their health."""

    def health(self) -> ClusterHealth:
        """Whether the cluster answers and the adapter turns; asks nobody."""

    def allowance(self, gangs: Mapping[str, Gang], manifests: Mapping[str, Any]) -> Allowance | None:
        """What is left for gangs that wait; None is no limit. `manifests` are the pool's own Jobs, by run id."""

    async def launch(self, order: LaunchOrder) -> Mapping[str, Any]:
        """Start a gang (or adopt it, if its key exists); returns what `Gang.launch` stores.

        Raises `ClusterError` if nothing was started.
        """

    async def notify(self, key: GangKey, notice: Notice) -> None:
        """Tell every member of the gang, in parallel, that it must leave by the deadline.

        The adapter enforces the deadline itself (SIGTERM, then SIGKILL), so that it holds when the worker dies.
        """

    async def withdraw(self, key: GangKey) -> bool:
        """Take back a notice that no member has acknowledged; False when it was too late."""

    async def stop(self, key: GangKey, grace_seconds: float) -> None:
        """Stop whatever is left of the gang: SIGTERM, then SIGKILL after the grace. Idempotent."""

    def events(self) -> AsyncIterator[ClusterEvent]:
        """What happens from now on, and everything `adopt` has not yet reported."""

    async def adopt(self) -> tuple[ObservedGang, ...]:
        """All gangs the cluster knows of, ended ones included until `forget`.

        Raises `GangTooNew` for one of a newer DSec where only a worker of the pool can have made it.
        """

    async def forget(self, key: GangKey) -> None:
        """The ledger has recorded the gang's end: remove what was kept to tell it. Logs stay."""

    async def close(self) -> None:
        """Stop following; the gangs run on."""
