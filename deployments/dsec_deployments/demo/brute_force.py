"""The cheapest victims, found by trying every set: what the plan's choice is held against.

Nothing is shared with the plan's search but the price of one gang.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.cost import eviction_cost
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import RunningGang


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest:
    """The best set, its price in device-seconds, and how many sets were looked at."""

    victims: frozenset[str]
    cost: float
    tried: int


def cheapest_victims(
    request: GangRequest, *, free: Mapping[str, int], running: Sequence[RunningGang], policy: Policy, now: float
) -> Cheapest | None:
    """The set of victims of lowest price that makes room for `request`; None if none does.

    `free` are the free devices of every node, those without any included.
    """
    candidates = [gang for gang in running if _may_be_evicted(gang, request, policy, now)]
    prices = {gang.run_id: eviction_cost(gang, policy, now) for gang in candidates}
    best: Cheapest | None = None
    tried = 0
    for victims in _every_set(candidates):
        tried += 1
        cost = sum(prices[gang.run_id] for gang in victims)
        if _fits(request, free, victims) and (best is None or cost < best.cost):
            best = Cheapest(victims=frozenset(gang.run_id for gang in victims), cost=cost, tried=tried)
    return None if best is None else Cheapest(victims=best.victims, cost=best.cost, tried=tried)


def _may_be_evicted(gang: RunningGang, request: GangRequest, policy: Policy, now: float) -> bool:
    settled = gang.first_commit_at is not None or now - gang.started_at >= policy.min_run_seconds
    return gang.request.evictable and gang.request.priority < request.priority and settled and not gang.evicting


def _fits(request: GangRequest, free: Mapping[str, int], victims: Iterable[RunningGang]) -> bool:
    room = Counter(free)
    for gang in victims:
        for member in gang.placement.members:
            room[member.node] += len(member.devices)
    return sum(devices >= request.devices_per_node for devices in room.values()) >= request.nodes


def _every_set(candidates: Sequence[RunningGang]) -> Iterable[tuple[RunningGang, ...]]:
    return chain.from_iterable(combinations(candidates, size) for size in range(len(candidates) + 1))
