"""What a planner remembers from one cycle to the next, so that only what has changed is worked out anew.

Everything in here follows from records that have come again: the waiting and the running, the fleet and the teams.
Nothing is remembered of what a plan decided. So planning with a memory is planning without one, only sooner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling.fleet import Fleet, Ints
from dsec_workers.scheduling.holders import Holders, Slots
from dsec_workers.scheduling.line import MOST_FORGOTTEN, Line
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.snapshot import Frozen, QueuedGang, Snapshot


@dataclass(eq=False)
class Memory:
    """One planner's; not to be shared by plans that run at the same time."""

    line: Line = field(default_factory=Line)
    verdicts: dict[int, Reason | None] = field(default_factory=dict)
    """By kind of gang: why it can never start; None where it may."""
    classes: dict[int, GangClass] = field(default_factory=dict)
    """By kind and person."""
    _asks: dict[object, int] = field(default_factory=dict)
    _holders: Holders | None = None
    _known: tuple[tuple[Team, ...], Mapping[str, Team], Frozen] | None = None

    def rows(self, queue: Sequence[QueuedGang]) -> Ints:
        """The row of each of these in `line`."""
        if self.line.overgrown:
            self.line, self._known = Line(), None
        return self.line.update(queue)

    def slots(self, snapshot: Snapshot) -> Slots:
        """The running gangs as arrays."""
        if self._holders is None or not _same(self._holders.fleet, snapshot.fleet):
            self._holders, self._known = Holders(snapshot.fleet), None
        return self._holders.update(snapshot.running)

    def asked_before(self, request: GangRequest, pool: str) -> int:
        """The number of what a class in that resource pool asks for, the same whenever the same is asked."""
        what = (
            pool, request.nodes, request.min_nodes, request.devices_per_node, request.topology, request.gpu_model,
            request.gpu_memory_bytes, request.share, request.cpus, request.memory_bytes,
        )  # fmt: skip
        return self._asks.setdefault(what, len(self._asks))

    def judge(self, snapshot: Snapshot, teams: tuple[Team, ...]) -> None:
        """Forget verdicts and classes unless all that they depend on is as it was; `teams` are those of the quota."""
        known = (teams, snapshot.teams, snapshot.frozen)
        if self._known != known or len(self.classes) > 2 * len(self.line.seen.records) + MOST_FORGOTTEN:
            self._known = known
            self.verdicts.clear()
            self.classes.clear()
            self._asks.clear()


def _same(one: Fleet, other: Fleet) -> bool:
    return one is other or one.source == other.source
