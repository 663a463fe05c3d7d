"""How long a gang's start may take: an ordinary time, and beside it what nodes need to pull images. Pure.

A first pull of a large image takes longer than any start should, and is no failure. What each pod's own status says it
cost is not counted against it, up to a limit, so that a worker that came later reckons as the one before it did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec_blocks.model.units import format_duration
from dsec_workers.clusters.kubernetes.pod_fate import Fate

FIRST_TOLD_SECONDS = 20.0
"""Images that are there sooner are nobody's news."""


@dataclass(kw_only=True)
class Patience:
    """With one gang of `count` members. All times are in seconds, `now` since the epoch.

    `overtime` is how long the ordinary time of a start has been over; negative while it is not.
    """

    count: int
    pull_seconds: float
    _excused: dict[int, float] = field(default_factory=dict)
    """member → what its images took: kept while a pull that began is tried again after an error"""
    _told: float = 0.0

    def see(self, fates: Mapping[int, Fate], now: float) -> None:
        """Take in how far the pods are."""
        for index, fate in fates.items():
            spent = min(self.pull_seconds, fate.preparation(now))
            self._excused[index] = max(self._excused.get(index, 0.0), spent)

    def late(self, fates: Mapping[int, Fate], overtime: float, now: float) -> dict[int, str]:
        """Members that are not there although their time is over, each with why."""
        found = {}
        for index in range(self.count):
            fate = fates.get(index)
            if (fate is None or not fate.is_running) and overtime > self._excused.get(index, 0.0):
                found[index] = _why(fate, now)
        return found

    def is_shut_too_long(self, overtime: float) -> bool:
        """Whether the start barrier should have opened, when all members are there."""
        return overtime > max(self._excused.values(), default=0.0)

    def news(self, fates: Mapping[int, Fate], now: float) -> str | None:
        """What keeps the gang's start waiting, when that is to be told: again each time it has lasted twice as long."""
        slow = [(fate.preparation(now), fate) for fate in fates.values() if fate.preparing]
        longest = max((seconds for seconds, _ in slow), default=0.0)
        if longest < max(FIRST_TOLD_SECONDS, 2 * self._told):
            return None
        self._told = longest
        _, fate = max(slow, key=lambda each: each[0])
        others = f", {len(slow) - 1} more of its nodes too" if len(slow) > 1 else ""
        return f"node {fate.node} {_so_far(fate, now)}{others}"


def _why(fate: Fate | None, now: float) -> str:
    if fate is None:
        return "no pod"
    return fate.stuck or (f"its node {_so_far(fate, now)}" if fate.preparing else fate.phase)


def _so_far(fate: Fate, now: float) -> str:
    return f"{fate.preparing} ({format_duration(fate.preparation(now))} so far)"
