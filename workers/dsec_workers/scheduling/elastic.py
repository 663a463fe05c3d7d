"""Elastic gangs: everybody starts at min_nodes, then what is left over is dealt out; those that run grow where it pays.

Dealing costs nothing, because nobody it concerns has started. Growing a gang that runs costs a checkpoint and a
restart of all that it has, so it must bring many times that in devices that would stay idle; and it is a passer: it
takes nothing that is kept for the head of line, and nothing while somebody waits for room of that kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling.cost import overhead_seconds, resize_cost
from dsec_workers.scheduling.decisions import Admit, Resize
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import LEVELS, Shape, find_seats, pick_devices, placement_of
from dsec_workers.scheduling.room import view_of
from dsec_workers.scheduling.shadow import expected_end, kept_devices
from dsec_workers.scheduling.snapshot import RunningGang
from dsec_workers.scheduling.tenants import nodes_of
from dsec_workers.scheduling.trial import Trial


def deal_surplus(
    trial: Trial, admits: Sequence[Admit], class_of: Callable[[str], tuple[int, GangClass]]
) -> list[Admit]:
    """`admits`, with the elastic ones among them grown one member at a time, the team furthest below its share first.

    Only gangs in free room that passed nobody take part; whoever finds no further seat is done.
    """
    dealt = list(admits)
    hungry = [
        index
        for index, admit in enumerate(dealt)
        if (kind := class_of(admit.run_id)[1]).request.devices
        and len(admit.placement.members) < kind.request.nodes
        and not (admit.victims or admit.waits_for or admit.resizes or admit.moves)
        and admit.run_id not in trial.conditional
    ]
    while hungry:
        kinds = [class_of(dealt[index].run_id)[1] for index in hungry]
        teams = np.array([kind.team for kind in kinds], np.int64)
        needs = np.array([kind.request.devices_per_node for kind in kinds], np.int64)
        shares = np.round(trial.quota.shares(teams, needs), 9)
        sizes = np.array([len(dealt[index].placement.members) for index in hungry], np.int64)
        place = int(np.lexsort((np.array(hungry), sizes, shares))[0])
        index = hungry[place]
        grown = _one_more(trial, dealt[index], *class_of(dealt[index].run_id))
        if grown is None or len(grown.placement.members) == kinds[place].request.nodes:
            hungry.pop(place)
        if grown is not None:
            dealt[index] = grown
    return dealt


def _one_more(trial: Trial, admit: Admit, number: int, kind: GangClass) -> Admit | None:
    each = kind.request.devices_per_node
    if not trial.quota_allows(kind, each):
        return None
    shape = replace(kind.least, members=len(admit.placement.members) + 1)
    mine, nodes = _numbers(trial, admit.placement), nodes_of(trial.fleet, admit.placement.members)
    avoided = trial.avoided(kind, number)
    free, hosts = trial.free.free & trial.mask(kind, avoided), trial.hosts_for(trial.free, avoided).copy()
    free[mine] = True
    hosts.take(kind.request, nodes, -1)
    view = view_of(trial.fleet, free, hosts)
    seats = find_seats(trial.fleet, view, shape, trial.saved(number), trial.against)
    if seats is None:
        return None
    devices = pick_devices(trial.fleet, free, seats, shape)
    until, taken = trial.times[mine[0]], np.concatenate(devices)
    for room in (trial.free, trial.soon):
        room.give(mine)
        room.take(taken)
        room.take_beside(kind.request, nodes, -1)
        room.take_beside(kind.request, seats.nodes)
    trial.beside.enter(admit.run_id, kind.request, seats.nodes, until)
    trial.load[nodes] -= 1
    np.add.at(trial.load, seats.nodes, 1)
    trial.times[mine], trial.times[taken] = trial.now, until
    trial.quota.use(kind.team, each, kind.user, asked=each)
    trial.forget_answers()
    return replace(admit, placement=placement_of(trial.fleet, seats, devices))


def grow(trial: Trial, waits_for_room: Callable[[RunningGang], bool]) -> list[Resize]:
    """Running elastic gangs that grow now. `waits_for_room` says whether anybody waits for room that it would take."""
    policy = trial.policy
    if not policy.resizing:
        return []
    growths = []
    kept = kept_devices(trial.kept, trial.fleet.size)
    heads = [keep for keep in trial.kept if not keep.pledge]
    relied = {slot for keep in heads for slot in trial.beside.relied_on(keep).tolist()}
    for gang in sorted(trial.snapshot.gangs(), key=lambda g: (g.started_at, g.run_id)):
        present = len(gang.placement.members)
        if gang.request.min_nodes is None or present >= gang.request.nodes or not _may_grow(trial, gang):
            continue
        if trial.snapshot.slots[gang.run_id] in relied or kept[_numbers(trial, gang.placement)].any():
            continue  # a head of line waits for what it has
        if waits_for_room(gang):
            continue
        found = _largest(trial, gang, trial.free.free & ~kept)
        if found is None:
            continue
        added, members = found
        overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, policy)
        price = overhead * len(gang.placement.devices)
        if len(added) * _idle_seconds(trial, gang) < policy.growth_worth * price:
            continue
        trial.free.take(added)
        trial.soon.take(added)
        nodes = nodes_of(trial.fleet, members.members)
        for room in (trial.free, trial.soon):
            room.take_beside(gang.request, nodes)
        trial.beside.enter(gang.run_id, gang.request, nodes, expected_end(gang, policy, trial.now))
        trial.quota.use(trial.quota.number[gang.team], len(added), gang.created_by)
        trial.forget_answers()
        placement = Placement(members=(*gang.placement.members, *members.members))
        cost = resize_cost(gang, len(placement.devices), policy, trial.now)
        growths.append(Resize(run_id=gang.run_id, placement=placement, cost=cost))
    return growths


def _idle_seconds(trial: Trial, gang: RunningGang) -> float:
    """How long devices would stay idle that the gang could use: no longer than it is expected to run itself."""
    horizon = trial.policy.idle_horizon_seconds
    if gang.request.max_runtime_seconds is None and gang.expected_seconds is None:
        return horizon
    return min(horizon, expected_end(gang, trial.policy, trial.now) - trial.now)


def _may_grow(trial: Trial, gang: RunningGang) -> bool:
    slot = trial.snapshot.slots[gang.run_id]
    roster, policy = trial.roster, trial.policy
    lately = gang.moved_at is not None and trial.now - gang.moved_at < policy.move_interval_seconds
    return bool(roster.movable[slot] and roster.exposed[slot]) and not lately and gang.conditional_until is None


def _largest(trial: Trial, gang: RunningGang, free: Bools) -> tuple[Ints, Placement] | None:
    """The most further members that find seats on other nodes, within the team's limits."""
    fleet, request, team = trial.fleet, gang.request, trial.quota.number[gang.team]
    mine = _numbers(trial, gang.placement)
    mask = free & fleet.pool_of(request).mask & ~np.isin(fleet.device_node, fleet.device_node[mine])
    if request.topology is Topology.DOMAIN:
        domains = fleet.island_domain[fleet.device_island]
        mask &= np.isin(domains, domains[mine]) & (domains >= 0)
    elif request.topology in LEVELS or request.topology is Topology.SPREAD:
        level = fleet.named_levels[LEVELS.get(request.topology, "rack")][fleet.device_node]
        # Nodes of which nobody said where they are have −1 in common, and nothing else.
        mask &= (np.isin(level, level[mine]) ^ (request.topology is Topology.SPREAD)) & (level >= 0)
    view = view_of(fleet, mask, trial.hosts_for(trial.free, tuple(range(len(trial.kept)))))
    room = min(
        trial.quota.ceiling(team, request) - int(trial.quota.used[team]), trial.quota.user_room(team, gang.created_by)
    )
    most = min(request.nodes - len(gang.placement.members), room // request.devices_per_node)
    for members in range(most, 0, -1):
        shape = Shape.of(request, members)
        seats = find_seats(fleet, view, shape, trial.worth, trial.against)
        if seats is not None:
            devices = pick_devices(fleet, view.free, seats, shape)
            return np.concatenate(devices), placement_of(fleet, seats, devices)
    return None


def _numbers(trial: Trial, placement: Placement) -> Ints:
    return np.array([trial.fleet.device_number[uuid] for uuid in placement.devices], np.int64)
