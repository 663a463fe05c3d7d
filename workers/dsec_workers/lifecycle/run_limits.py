"""The concurrency limits that somebody set on the work pool or a work queue in the Prefect UI: so many runs at a time.

Prefect's own workers obey them when they poll. They count runs, whatever these hold; a run counts from the moment its
devices are reserved until it has left.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.clusters.protocol import Allowance
from dsec_workers.scheduling.decisions import Admit

_COUNT = frozenset({*HOLDING_STATES, GangState.LEAVING})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What is set now; a queue without a limit is absent."""

    pool: int | None = None
    queues: Mapping[str, int] = field(default_factory=dict)

    def room(self, gangs: Iterable[Gang], allowance: Allowance | None = None) -> "Room":
        """What these limits, and the cluster's owners, leave beside the gangs that have begun and have not left."""
        is_limited = self.pool is not None or bool(self.queues)
        taken = Counter(gang.team for gang in gangs if gang.state in _COUNT) if is_limited else Counter()
        return Room(limits=self, taken=taken, allowance=allowance)


@dataclass(kw_only=True)
class Room:
    """How many runs may still be admitted."""

    limits: RunLimits
    taken: Counter[str] = field(default_factory=Counter)
    """Runs by queue, where there are limits."""
    allowance: Allowance | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether nobody limits anything."""
        return self.limits.pool is None and not self.limits.queues and self.allowance is None

    def refusal(self, gang: Gang) -> Reason | None:
        """Why the gang may not be admitted, whatever is free: these limits, then the cluster's."""
        reached = self.reason(gang.team)
        return self.allowance.reason(gang) if reached is None and self.allowance is not None else reached

    def holds(self, gang: Gang, admit: Admit) -> bool:
        """Count the gang's admission, if there is room for it."""
        if self.reason(gang.team) is not None:
            return False
        # Who moves comes back with as much.
        leaving = {victim.run_id for victim in admit.victims} | {resize.run_id for resize in admit.resizes}
        if self.allowance is not None and not self.allowance.take(gang, admit.placement, leaving):
            return False
        return self.take(gang.team)

    def reason(self, queue: str) -> Reason | None:
        """Why no further run of the queue may be admitted; None if one may."""
        pool, own = self.limits.pool, self.limits.queues.get(queue)
        if pool is not None and self.taken.total() >= pool:
            return _reached("the work pool", pool)
        if own is not None and self.taken[queue] >= own:
            return _reached(f"work queue {queue}", own)
        return None

    def take(self, queue: str) -> bool:
        """Count one more run of the queue, if it may be admitted."""
        if self.reason(queue) is not None:
            return False
        self.taken[queue] += 1
        return True


def _reached(of: str, limit: int) -> Reason:
    runs = "1 run" if limit == 1 else f"{limit} runs"
    return Reason(code=ReasonCode.WAITS_FOR_QUOTA, text=f"{of} is limited to {runs} at a time (in Prefect)")
