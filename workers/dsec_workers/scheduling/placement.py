"""Where a gang fits: by shape, in the smallest domain that holds it, leaving whole nodes and racks whole.

One rule at every scale, after Kueue's best fit: of the domains that can hold the gang take the one with the least
room, inside it the nodes that those likely to come would miss least (`prospects`), then those with the least left
over. Large gangs therefore find whole domains, and small ones fill what is already broken. Where gangs have failed
lately, domains that need none of those nodes come first. Members sit on different nodes (a member is one per node). Of
equals the first by name.
"""

from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Topology
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.hosts import Hosts, host_needs
from dsec_workers.scheduling.room import View


@dataclass(frozen=True, slots=True)
class Shape:
    """`members` nodes with `devices` each, and how tightly; processors and memory are each member's."""

    members: int
    devices: int
    topology: Topology
    cpu_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, request: GangRequest, members: int) -> "Shape":
        """The request with so many members."""
        return cls(members, request.devices_per_node, request.topology, *host_needs(request))

    @property
    def total(self) -> int:
        """Devices of the whole gang."""
        return self.members * self.devices


@dataclass(frozen=True, slots=True)
class Seats:
    """The node of each member and, where its devices must share one, the island (else −1)."""

    nodes: Ints
    islands: Ints


LEVELS = {Topology.RACK: "rack", Topology.BLOCK: "block", Topology.ZONE: "zone"}
"""The topology level that a gang must not leave."""
BY_ISLAND = (Topology.NODE_DOMAIN, Topology.DOMAIN)
"""Topologies whose members each sit in one island."""


def find_seats(
    fleet: Fleet, view: View, shape: Shape, saved: Floats | None = None, against: Floats | None = None
) -> Seats | None:
    """The best place for `shape` among the view's free devices; None if it has none. O(nodes), deterministic.

    `saved` is what each node is worth to this gang, in cards (its cache has some of the inputs; less where gangs have
    failed lately) and decides inside a domain; `against`, what those failures weigh, decides between domains too.
    """
    view = _with_hosts(fleet, view, shape)
    able = int(np.count_nonzero(view.node_free >= shape.devices))
    if able < shape.members:
        return None
    costs = _costs(fleet, view, shape, saved) if able > shape.members else None
    if shape.members == 1:
        return _one_member(fleet, view, shape, costs)
    if shape.topology is Topology.SPREAD:
        return _spread(fleet, view, shape, costs)
    within = fleet.named_levels[LEVELS[shape.topology]] if shape.topology in LEVELS else None
    seats = _within_nvlink(fleet, view, shape, costs, against)
    if seats is not None and within is not None and not _together(within[seats.nodes]):
        seats = None
    if seats is not None or shape.topology is Topology.DOMAIN:
        return seats
    islands = _best_island(fleet, view, shape) if shape.topology is Topology.NODE_DOMAIN else None
    fits = view.node_free >= shape.devices if islands is None else islands >= 0
    if within is not None:
        fits &= within >= 0
    nodes = None
    for level in (*fleet.levels, within) if within is not None else fleet.levels:
        nodes = _best_group(fleet, level, fits, view.node_free, shape, costs, against)
        if nodes is not None and (within is None or _together(within[nodes])):
            break
        nodes = None
    if nodes is None and within is None:
        nodes = _tightest(fleet, np.flatnonzero(fits), view.node_free, shape, costs)
    if nodes is None:
        return None
    return Seats(nodes, np.full(len(nodes), -1) if islands is None else islands[nodes])


def fits(fleet: Fleet, view: View, shape: Shape) -> bool:
    """Whether `find_seats` would find any, without choosing."""
    view = _with_hosts(fleet, view, shape)
    usable = view.island_free >= shape.devices
    if shape.members > 1 and (shape.topology in LEVELS or shape.topology is Topology.SPREAD):
        level = fleet.named_levels[LEVELS.get(shape.topology, "rack")]
        counts = np.bincount(level[(view.node_free >= shape.devices) & (level >= 0)], minlength=1)
        return bool((counts > 0).sum() >= shape.members if shape.topology is Topology.SPREAD
                    else counts.max() >= shape.members)  # fmt: skip
    if shape.topology not in BY_ISLAND:
        return int(np.count_nonzero(view.node_free >= shape.devices)) >= shape.members
    if shape.devices > 1 or (shape.topology is Topology.DOMAIN and shape.members > 1):
        usable &= fleet.island_domain >= 0
    if shape.members == 1:
        return bool(usable.any())
    if shape.topology is Topology.NODE_DOMAIN:
        return len(np.unique(fleet.island_node[usable])) >= shape.members
    counts = np.bincount(fleet.island_domain[usable], minlength=1)
    return int(counts.max(initial=0)) >= shape.members


def _together(groups: Ints) -> bool:
    return bool((groups == groups[0]).all() and groups[0] >= 0)


def _with_hosts(fleet: Fleet, view: View, shape: Shape) -> View:
    """The view without nodes that lack the processors or the memory."""
    if view.hosts is None or not (shape.cpu_milli or shape.memory_mib):
        return view
    return view.on(fleet, view.hosts.able(shape.cpu_milli, shape.memory_mib))


def _costs(fleet: Fleet, view: View, shape: Shape, saved: Floats | None) -> Floats | None:
    """Per node, what a member there costs those who are likely to come, less what it saves itself."""
    if fleet.prospects is None:
        return None if saved is None else -saved
    costs = fleet.prospects.costs(
        view.node_free, shape.devices, cpu_milli=shape.cpu_milli, memory_mib=shape.memory_mib, hosts=view.hosts
    )
    return costs if saved is None else costs - saved


def pick_devices(fleet: Fleet, free: Bools, seats: Seats, shape: Shape) -> list[Ints]:
    """The device numbers of each member: from one island where one holds them, the fullest-used island first."""
    return [
        _devices_on(fleet, free, int(node), int(island), shape.devices)
        for node, island in zip(seats.nodes, seats.islands, strict=True)
    ]


def placement_of(fleet: Fleet, seats: Seats, devices: list[Ints]) -> Placement:
    """The placement in names and UUIDs."""
    return Placement(
        members=tuple(
            MemberPlacement(node=fleet.nodes[node], devices=tuple(fleet.uuids[number] for number in numbers))
            for node, numbers in zip(seats.nodes.tolist(), devices, strict=True)
        )
    )


def cpu_seats(
    open_nodes: Bools,
    load: Ints,
    shape: Shape,
    hosts: Hosts | None = None,
    saved: Floats | None = None,
    against: Floats | None = None,
) -> Seats | None:
    """Nodes for a gang without devices: those with the fewest members, again and again; None if no node is open.

    Of nodes with equally many, those first whose cache saves most. What `against` speaks against comes last, however
    few members it has: where starts fail there are always few.
    A gang that asks for processors or memory gets no more members on a node than it has room for.
    """
    times = np.where(open_nodes, shape.members, 0)
    if hosts is not None and (shape.cpu_milli or shape.memory_mib):
        times = np.where(open_nodes, hosts.times(shape.cpu_milli, shape.memory_mib, shape.members), 0)
    candidates = np.flatnonzero(times)
    if times.sum() < shape.members:
        return None
    keys: list[Ints | Floats] = [candidates, *([] if saved is None else [-saved[candidates]]), load[candidates]]
    order = candidates[np.lexsort(keys if against is None else [*keys, against[candidates]])]
    rounds = [order[times[order] > turn] for turn in range(-(-shape.members // max(1, len(order))))]
    while sum(map(len, rounds)) < shape.members:
        rounds.append(order[times[order] > len(rounds)])
    nodes = np.concatenate(rounds)[: shape.members]
    return Seats(nodes, np.full(shape.members, -1))


def _one_member(fleet: Fleet, view: View, shape: Shape, costs: Floats | None) -> Seats | None:
    need = shape.devices
    usable = view.island_free >= need
    if need > 1:
        usable &= fleet.island_domain >= 0
    islands = np.flatnonzero(usable)
    if len(islands):
        nodes = fleet.island_node[islands]
        if costs is not None:
            cheapest = costs[nodes] == costs[nodes].min()
            islands, nodes = islands[cheapest], nodes[cheapest]
        score = (view.node_free[nodes] - need).clip(0, 1023)
        score = score << 10 | (view.island_free[islands] - need).clip(0, 1023)
        tied = islands[score == score.min()]
        if len(tied) > 1:
            tied = tied[_room_around(fleet, view, fleet.island_node[tied], fleet.island_domain[tied])]
        best = tied[0]
        return Seats(fleet.island_node[best : best + 1], np.array([best]))
    if shape.topology in BY_ISLAND:
        return None
    nodes = np.flatnonzero(view.node_free >= need)
    if not len(nodes):
        return None
    if costs is not None:
        nodes = nodes[costs[nodes] == costs[nodes].min()]
    left = view.node_free[nodes]
    tied = nodes[left == left.min()]
    if len(tied) > 1:
        tied = tied[_room_around(fleet, view, tied, None)]
    return Seats(tied[:1], np.array([-1]))


def _room_around(fleet: Fleet, view: View, nodes: Ints, domains: Ints | None) -> Ints:
    """Order of `nodes` by free devices in their NVLink domain, then at each level, least first: used racks fill up."""
    keys: list[Ints] = [nodes]
    for level in reversed(fleet.levels):
        keys.append(_weigh(level, view.node_free)[level[nodes]])
    if domains is not None and len(fleet.domains):
        linked = fleet.island_domain >= 0
        room = np.zeros(len(fleet.domains) + 1, np.int64)
        room[:-1] = np.bincount(
            fleet.island_domain[linked], view.island_free[linked], minlength=len(fleet.domains)
        ).astype(np.int64)
        keys.append(room[domains])
    return np.lexsort(keys)


def _weigh(groups: Ints, weights: Ints) -> Ints:
    return np.bincount(groups, weights, minlength=int(groups.max(initial=-1)) + 1).astype(np.int64)


def _spread(fleet: Fleet, view: View, shape: Shape, costs: Floats | None) -> Seats | None:
    """The best node of each rack, in as many racks as there are members: those with the least room that will do."""
    racks = fleet.named_levels["rack"]
    nodes = np.flatnonzero((view.node_free >= shape.devices) & (racks >= 0))
    room = _weigh(racks[racks >= 0], view.node_free[racks >= 0])
    keys: list[Ints | Floats] = [nodes, room[racks[nodes]], view.node_free[nodes]]
    ordered = nodes[np.lexsort([*keys, *([] if costs is None else [costs[nodes]])])]
    _, first = np.unique(racks[ordered], return_index=True)
    if len(first) < shape.members:
        return None
    chosen = np.sort(ordered[np.sort(first)[: shape.members]])
    return Seats(chosen, np.full(len(chosen), -1))


def _within_nvlink(
    fleet: Fleet, view: View, shape: Shape, costs: Floats | None, against: Floats | None
) -> Seats | None:
    islands = np.flatnonzero((view.island_free >= shape.devices) & (fleet.island_domain >= 0))
    if len(islands) < shape.members:
        return None
    domains = fleet.island_domain[islands]
    counts = np.bincount(domains, minlength=len(fleet.domains))
    able = np.flatnonzero(counts >= shape.members)
    if not len(able):
        return None
    linked = fleet.island_domain >= 0
    room = np.bincount(fleet.island_domain[linked], view.island_free[linked], minlength=len(fleet.domains))
    failed = None if against is None else _least(domains, against[fleet.island_node[islands]], shape, len(counts))
    domain = _best_of(able, counts, room, failed)
    mine = islands[domains == domain]
    nodes = fleet.island_node[mine]
    keys: list[Ints | Floats] = [nodes, view.node_free[nodes], *([] if costs is None else [costs[nodes]])]
    chosen = mine[np.lexsort(keys)[: shape.members]]
    chosen = chosen[np.argsort(fleet.island_node[chosen], kind="stable")]
    return Seats(fleet.island_node[chosen], chosen)


def _best_island(fleet: Fleet, view: View, shape: Shape) -> Ints:
    """Node → its island with the least room that still holds a member; −1 where none does."""
    usable = view.island_free >= shape.devices
    if shape.devices > 1:
        usable &= fleet.island_domain >= 0
    islands = np.flatnonzero(usable)
    best = np.full(len(fleet.nodes), -1, np.int64)
    order = islands[np.lexsort((-islands, -view.island_free[islands]))]
    best[fleet.island_node[order]] = order  # the last write wins: least room, then lowest number
    return best


def _best_group(
    fleet: Fleet,
    level: Ints,
    fits: Bools,
    node_free: Ints,
    shape: Shape,
    costs: Floats | None,
    against: Floats | None,
) -> Ints | None:
    if (level < 0).any():
        fits = fits & (level >= 0)
    counts = np.bincount(level[fits], minlength=int(level.max(initial=-1)) + 1)
    able = np.flatnonzero(counts >= shape.members)
    if not len(able):
        return None
    room = _weigh(level[level >= 0], node_free[level >= 0])
    failed = None if against is None else _least(level[fits], against[fits], shape, len(counts))
    group = _best_of(able, counts, room, failed)
    return _tightest(fleet, np.flatnonzero(fits & (level == group)), node_free, shape, costs)


def _best_of(able: Ints, counts: Ints, room: Ints | Floats, failed: Floats | None) -> int:
    """The domain with the fewest places and the least room, of those where least has failed."""
    keys: list[Ints | Floats] = [able, room[able], counts[able], *([] if failed is None else [failed[able]])]
    return int(able[np.lexsort(keys)[0]])


def _least(groups: Ints, against: Floats, shape: Shape, count: int) -> Floats:
    """Per group, what speaks against the members' places there when those are taken that it speaks least against."""
    order = np.lexsort((against, groups))
    sizes = np.bincount(groups, minlength=count)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = order[place < shape.members]
    return np.asarray(np.round(np.bincount(groups[taken], against[taken], minlength=count), 9), float)


def _tightest(fleet: Fleet, nodes: Ints, node_free: Ints, shape: Shape, costs: Floats | None) -> Ints | None:
    """The cheapest `members` nodes, then those with the least left over; used racks first when nodes tie."""
    if len(nodes) < shape.members:
        return None
    keys: list[Ints | Floats] = [nodes]
    for level in reversed(fleet.levels):
        keys.append(_weigh(level, node_free)[level[nodes]])
    keys.append(node_free[nodes])
    if costs is not None:
        keys.append(costs[nodes])
    return np.sort(nodes[np.lexsort(keys)[: shape.members]])


def _devices_on(fleet: Fleet, free: Bools, node: int, island: int, count: int) -> Ints:
    if not count:
        return np.empty(0, np.int64)
    start, end = fleet.node_start[node], fleet.node_start[node + 1]
    numbers: Ints = start + np.flatnonzero(free[start:end])
    islands = fleet.device_island[numbers]
    if island >= 0:
        return _first(numbers[islands == island], count)
    if islands.min() == islands.max():
        return _first(numbers, count)
    names, sizes = np.unique(islands, return_counts=True)
    linked = fleet.island_domain[names] >= 0
    holding = names[(sizes >= count) & linked]
    if len(holding):
        best = holding[np.argmin(sizes[(sizes >= count) & linked])]
        return _first(numbers[islands == best], count)
    by_size = dict(zip(names.tolist(), sizes.tolist(), strict=True))
    order = sorted(range(len(numbers)), key=lambda i: (-by_size[int(islands[i])], int(islands[i]), int(numbers[i])))
    return np.sort(numbers[order[:count]])


def _first(numbers: Ints, count: int) -> Ints:
    return numbers[:count]
