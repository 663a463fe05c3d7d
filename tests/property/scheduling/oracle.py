"""Who should make room for one gang, by trying every set, written without any of the code that it checks."""

from collections.abc import Iterable
from functools import cache
from itertools import combinations
from math import exp

from dsec_blocks.model.devices import Health, Node
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang
from tests.property.scheduling import worlds

NOW = worlds.NOW
POLICY = Policy()


def places(cluster: list[Node], free: set[str], wants: GangRequest, stay: Iterable[RunningGang] = ()) -> bool:
    """Whether the shape fits on `free`, by trying every combination of nodes; `stay` use some of what is beside."""
    n, k = wants.nodes, wants.devices_per_node
    offers: dict[str, list[tuple[str, str]]] = {}
    guests = [(member.node, gang.request) for gang in stay for member in gang.placement.members]
    for machine in cluster:
        here = [request for name, request in guests if name == machine.name]
        if machine.schedulable and beside_suffices(machine, [*here, wants], wants):
            offers[machine.name] = [
                (device.uuid, device.nvlink_domain)
                for device in machine.devices
                if device.uuid in free and device.health is Health.HEALTHY and wants.gpu_model in (None, device.model)
            ]
    paths = {machine.name: machine.topology for machine in cluster}
    for hosts in combinations(sorted(offers), n):
        # A rack, block or zone is about where the members are, whatever links their devices; only the two topologies
        # named after NVLink domains ask that a member's devices share one.
        if wants.topology not in (Topology.NODE_DOMAIN, Topology.DOMAIN) or n * k == 1:
            room = all(len(offers[host]) >= k for host in hosts)
            if room and lie_as_asked([paths[host] for host in hosts], wants.topology):
                return True
            continue
        groups = [
            {domain for _, domain in offers[h] if sum(d == domain for _, d in offers[h]) >= k and (domain or k == 1)}
            for h in hosts
        ]
        if wants.topology is Topology.NODE_DOMAIN:
            if all(groups):
                return True
        elif set.intersection(*groups) - {""}:
            return True
    return False


def beside_suffices(machine: Node, together: list[GangRequest], wants: GangRequest) -> bool:
    """Whether the node has the processors and the memory for all of them, of those that `wants` asks for."""
    cpus, memory = machine.cpus, machine.memory_bytes
    if wants.cpus and cpus is not None and sum(request.cpus or 0 for request in together) > cpus:
        return False
    return not (
        wants.memory_bytes and memory is not None and sum(request.memory_bytes or 0 for request in together) > memory
    )


def lie_as_asked(paths: list[tuple[str, ...]], topology: Topology) -> bool:
    """Whether nodes with these topology paths share a rack, block or zone, or no two a rack; one is never too far."""
    if len(paths) == 1:
        return True
    parts = {2: ("zone", "rack"), 3: ("zone", "block", "rack")}
    level = "rack" if topology is Topology.SPREAD else topology.value
    if level not in ("rack", "block", "zone"):
        return True
    if not all(level in parts[len(path)] for path in paths):
        return False
    places = {path[: parts[len(path)].index(level) + 1] for path in paths}
    return len(places) == (len(paths) if topology is Topology.SPREAD else 1)


def price(gang: RunningGang) -> float:
    devices = len(gang.placement.devices)
    chance = 1 - exp(-gang.request.grace_seconds / POLICY.checkpoint_seconds) if gang.has_on_evict else 0.0
    since = max(gang.started_at, gang.last_commit_at or gang.started_at)
    extra = 600.0 if gang.request.kind is Kind.INTERACTIVE else 0.0
    each = POLICY.checkpoint_seconds + POLICY.restart_seconds + (1 - chance) * (NOW - since) + 120.0 * gang.evictions
    return round(devices * (each + extra), 3)


def may_go(victims: Iterable[RunningGang], gang: QueuedGang, used: dict[str, int], teams: dict[str, Team]) -> bool:
    """Whether there is an order in which all of these may be evicted for `gang`, and its team's limits hold after."""
    chosen = tuple(victims)
    size = {victim.run_id: len(victim.placement.devices) for victim in chosen}
    team, evictable = teams[gang.team], gang.request.preemptible and gang.request.kind is not Kind.INFERENCE
    after = used[gang.team] + gang.request.devices - sum(size[v.run_id] for v in chosen if v.team == gang.team)
    if team.borrow_devices is not None and after > team.nominal_devices + team.borrow_devices:
        return False
    if not evictable and after > team.nominal_devices:
        return False
    within = used[gang.team] + gang.request.devices <= team.nominal_devices
    for victim in chosen:
        young = victim.first_commit_at is None and NOW - victim.started_at < POLICY.min_run_seconds
        if victim.request.kind is Kind.INFERENCE or not victim.request.preemptible or victim.evicting or young:
            return False

    by_id = {victim.run_id: victim for victim in chosen}

    @cache
    def order_exists(left: frozenset[str]) -> bool:
        if not left:
            return True
        for run_id in left:
            last, before = by_id[run_id], left - {run_id}
            usage = used[last.team] - sum(size[name] for name in before if by_id[name].team == last.team)
            borrowing = usage > teams[last.team].nominal_devices
            lower = last.request.priority < gang.request.priority
            reclaim = within and borrowing
            allowed = lower if last.team == gang.team else reclaim or (lower and (within or borrowing))
            if allowed and order_exists(before):
                return True
        return False

    return order_exists(frozenset(by_id))


def cheapest(cluster: list[Node], held: list[RunningGang], gang: QueuedGang, teams: dict[str, Team]) -> float | None:
    taken = {uuid for g in held if not g.evicting for uuid in g.placement.devices}
    every = {device.uuid for machine in cluster for device in machine.devices}
    used = {name: sum(len(g.placement.devices) for g in held if g.team == name and not g.evicting) for name in teams}
    stayers = [g for g in held if not g.evicting]
    best = None
    for count in range(len(stayers) + 1):
        for chosen in combinations(stayers, count):
            cost = sum(price(victim) for victim in chosen)
            if best is not None and cost >= best - 1e-9:
                continue
            freed = (every - taken) | {uuid for victim in chosen for uuid in victim.placement.devices}
            left = [holder for holder in stayers if holder not in chosen]
            if places(cluster, freed, gang.request, left) and may_go(chosen, gang, used, teams):
                best = cost
    return best
