"""The head of line's reservation on future capacity, and the estimates made from the same forecast.

For every device the forecast knows when it will be free: a running gang's max_runtime is enforced and counts as a
contract; without one an estimate stands in, doubled each time the gang outlives it (services are not expected to
end). The earliest time at which a shape fits is found without simulation: a node can host a member when its k-th
device is free, the gang can start when n nodes can (EASY's shadow time, by shape instead of by sum).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp, inf, ldexp

import numpy as np

from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.placement import BY_ISLAND, LEVELS, Seats, Shape, find_seats, pick_devices
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.room import view_of
from dsec_workers.scheduling.snapshot import RunningGang, Snapshot


def expected_runtime(
    request: GangRequest, policy: Policy, elapsed: float = 0.0, *, learned: float | None = None
) -> float:
    """Seconds from start to end: the contract, else what runs like it lasted (the default where nothing is known),
    doubled until it exceeds what has elapsed.
    """
    if request.max_runtime_seconds is not None:
        return request.max_runtime_seconds
    if request.kind is Kind.INFERENCE:
        return inf
    default = policy.default_runtime_seconds if learned is None else learned
    return default if elapsed < default else ldexp(default, frexp(elapsed / default)[1])


def expected_end(gang: RunningGang, policy: Policy, now: float) -> float:
    """When the gang's devices are expected to be free; never in the past. A passer leaves when its condition says."""
    if gang.evicting:
        return now + gang.request.grace_seconds
    end = gang.started_at + expected_runtime(gang.request, policy, now - gang.started_at, learned=gang.expected_seconds)
    return max(now, end if gang.conditional_until is None else min(end, gang.conditional_until))


def free_times(snapshot: Snapshot, slots: Slots, closed_nodes: Bools, policy: Policy, now: float) -> Floats:
    """Per device, when it will be free; infinity where it takes no work."""
    ends = np.append(slots.expected_ends(policy, now), now)
    times = np.where(snapshot.holder >= 0, ends[snapshot.holder], now)
    times = np.where(snapshot.next_holder >= 0, ends[snapshot.next_holder], times)
    times[~snapshot.fleet.device_usable | closed_nodes[snapshot.fleet.device_node]] = inf
    return times


def earliest(
    fleet: Fleet, times: Floats, mask: Bools, shape: Shape, *, before: float = inf, beside: Floats | None = None
) -> tuple[float, Seats, list[Ints]] | None:
    """The first time at which `shape` fits on devices in `mask`, with the seats and devices it would take then.

    `beside` says when each node has what a member needs beside its devices. None when the time is not earlier than
    `before`.
    """
    when = np.where(mask, times, inf)
    if beside is not None:
        when = np.maximum(when, beside[fleet.device_node])
    start = _start(fleet, when, shape)
    if not start < before:
        return None
    ready = when <= start
    seats = find_seats(fleet, view_of(fleet, ready), shape)
    if seats is None:
        return None
    if beside is not None:
        # Where its start waits for something else, devices that are free before it are left to others.
        ready = held_longest(fleet, ready, seats, shape, times)
    return start, seats, pick_devices(fleet, ready, seats, shape)


def held_longest(fleet: Fleet, ready: Bools, seats: Seats, shape: Shape, times: Floats) -> Bools:
    """`ready` without the devices in the seats that a member can do without, those that are free first."""
    found = ready.copy()
    for node, island in zip(seats.nodes.tolist(), seats.islands.tolist(), strict=True):
        start, end = int(fleet.node_start[node]), int(fleet.node_start[node + 1])
        mine = start + np.flatnonzero(ready[start:end] & ((island < 0) | (fleet.device_island[start:end] == island)))
        found[mine[np.argsort(times[mine], kind="stable")[: len(mine) - shape.devices]]] = False
    return found


def _start(fleet: Fleet, when: Floats, shape: Shape) -> float:
    by_node = shape.topology not in BY_ISLAND
    hosts = _hosts(fleet.by_node if by_node else fleet.by_island, when, shape.devices)
    if by_node and shape.members > 1 and (shape.topology in LEVELS or shape.topology is Topology.SPREAD):
        level = fleet.named_levels[LEVELS.get(shape.topology, "rack")]
        placed = level >= 0
        spread = shape.topology is Topology.SPREAD
        times = _kth(level[placed], int(level.max(initial=-1)) + 1, hosts[placed], 1 if spread else shape.members)
        return _nth(times, shape.members) if spread else float(times.min(initial=inf))
    if by_node:
        return _nth(hosts, shape.members)
    if shape.devices > 1 or (shape.topology is Topology.DOMAIN and shape.members > 1):
        hosts[fleet.island_domain < 0] = inf
    if shape.members == 1:
        return float(hosts.min(initial=inf))
    if shape.topology is Topology.NODE_DOMAIN:
        nodes = np.full(len(fleet.nodes), inf)
        np.minimum.at(nodes, fleet.island_node, hosts)
        return _nth(nodes, shape.members)
    linked = fleet.island_domain >= 0
    return float(_kth(fleet.island_domain[linked], len(fleet.domains), hosts[linked], shape.members).min(initial=inf))


def _hosts(rows: Ints, when: Floats, k: int) -> Floats:
    """Per node or island, when its k-th device is free."""
    width = rows.shape[1]
    if k > width:
        return np.full(len(rows), inf)
    times: Floats = np.append(when, inf)[rows]
    if k == 1:
        return np.asarray(times.min(axis=1), float)
    if k == width:
        return np.asarray(times.max(axis=1), float)
    return np.asarray(np.partition(times, k - 1, axis=1)[:, k - 1], float)


def _nth(values: Floats, n: int) -> float:
    return inf if len(values) < n else float(np.partition(values, n - 1)[n - 1])


def _kth(groups: Ints, count: int, values: Floats, k: int) -> Floats:
    """Per group, the k-th smallest of its values; infinity in groups with fewer."""
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    result = np.full(count, inf)
    enough = np.flatnonzero(sizes >= k)
    result[enough] = values[order[starts[enough] + k - 1]]
    return result


@dataclass(eq=False, slots=True)
class Kept:
    """Devices kept for one waiting gang: a shadow, or a pledge (room its victims leave), which no passer may use."""

    number: int
    """Gang number in the queue; −1 for a gang that is not in this queue."""
    run_id: str
    resource_pool: str
    team: int
    request: GangRequest
    start: float
    since: float
    devices: Ints
    mask: Bools
    shape: Shape
    """What each member needs beside its devices is kept for it on its node."""
    nodes: Ints
    """The node of each member; members without devices may be several on one."""
    pledge: bool = False


def kept_devices(kept: Sequence[Kept], size: int) -> Bools:
    """All devices that any of these keep."""
    mask = np.zeros(size, bool)
    for keep in kept:
        mask |= keep.mask
    return mask
