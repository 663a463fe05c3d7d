"""Devices that an operator keeps for somebody, or wants empty: a reserved window, a node that is to be drained.

Before the span begins a gang may be placed on them if its max_runtime, which is enforced, ends in time; for a window
also if it can be evicted and gets enough of a run before that (the worker evicts it in time). Within the span only
those for whom the devices are kept may start there. Whoever may not use them plans as if they were not there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from dsec_workers.scheduling.fleet import Bools, Fleet, ResourcePool
from dsec_workers.scheduling.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """One such order. Times in seconds since the epoch; `end` may be infinite."""

    name: str
    devices: frozenset[str]
    start: float
    end: float = inf
    teams: frozenset[str] = frozenset()
    """Teams that may use them within the span."""
    tags: frozenset[str] = frozenset()
    """Runs with one of these tags may, too."""
    conditional: bool = True
    """Whether gangs that can be evicted may stay until the span begins."""
    text: str = ""
    """What the waiting are told: for whom, by whom, why."""

    def entitled(self, team: str, tags: Iterable[str]) -> bool:
        """Whether the devices are kept for such a gang."""
        return team in self.teams or not self.tags.isdisjoint(tags)

    def binds(self, *, team: str, tags: Iterable[str], ends: float | None, evictable: float | None, now: float) -> bool:
        """Whether a gang that would start now must keep off.

        `ends` is when its contract ends, None without one; `evictable` how much time must be left before the span so
        that a start is worth its eviction, None if nobody may evict it.
        """
        if now >= self.end or self.entitled(team, tags):
            return False
        if ends is not None and ends <= self.start:
            return False
        return not (self.conditional and evictable is not None and self.start - now >= evictable)


class Withholding:
    """All orders of one cycle over the devices of one fleet."""

    def __init__(self, fleet: Fleet, orders: Iterable[Withheld], policy: Policy, now: float) -> None:
        self.orders = tuple(sorted((order for order in orders if order.end > now), key=lambda order: order.name))
        self.policy, self.now = policy, now
        numbers = fleet.device_number
        self._masks: list[Bools] = []
        for order in self.orders:
            mask = np.zeros(fleet.size, bool)
            mask[[numbers[uuid] for uuid in order.devices if uuid in numbers]] = True
            self._masks.append(mask)
        self._pools: dict[tuple[str, tuple[int, ...]], ResourcePool] = {}

    def binding(
        self,
        *,
        team: str,
        tags: Iterable[str],
        max_runtime_seconds: float | None,
        worth_seconds: float | None,
    ) -> tuple[int, ...]:
        """Numbers of the orders that bind a gang; see `Withheld.binds`."""
        if not self.orders:
            return ()
        ends = None if max_runtime_seconds is None else self.now + max_runtime_seconds
        return tuple(
            number
            for number, order in enumerate(self.orders)
            if order.binds(team=team, tags=tags, ends=ends, evictable=worth_seconds, now=self.now)
        )

    def pool(self, pool: ResourcePool, binding: tuple[int, ...]) -> ResourcePool:
        """The resource pool without what is withheld."""
        if not binding:
            return pool
        key = (pool.label, binding)
        if key not in self._pools:
            mask = pool.mask.copy()
            for number in binding:
                mask &= ~self._masks[number]
            names = ", ".join(self.orders[number].name for number in binding)
            self._pools[key] = replace(pool, label=f"{pool.label} without {names}", mask=mask)
        return self._pools[key]
