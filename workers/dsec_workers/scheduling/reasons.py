"""Why a gang waits, in words: what it needs, what there is, and what would help.

Codes and their order are in `dsec_blocks.model.reasons`; here is the text. Position and estimate are fields of their
own, because they change every cycle; `sentence` puts all three together for the run's page.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from dsec_blocks.model.reasons import NEEDS_A_CHANGE, Reason, ReasonCode
from dsec_blocks.model.requests import GangRequest, Topology
from dsec_blocks.model.teams import Team
from dsec_blocks.model.units import format_duration, format_memory
from dsec_workers.scheduling.decisions import Hold
from dsec_workers.scheduling.fleet import Fleet, Ints, ResourcePool
from dsec_workers.scheduling.placement import LEVELS, Shape, fits
from dsec_workers.scheduling.room import View


def sentence(hold: Hold, now: float) -> str:
    """One line: "needs 8 H100 on one node; 4 free on the best node; 3rd in line; starts in about 12 min"."""
    parts = [hold.reason.text]
    if hold.position is not None and hold.reason.code not in NEEDS_A_CHANGE:
        parts.append(f"{ordinal(hold.position)} in line")
    if hold.eta is not None:
        left = hold.eta - now
        parts.append(f"starts in about {format_duration(left)}" if left >= 1 else "should start any moment")
    return "; ".join(parts)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def gpus(count: int) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def wanted(request: GangRequest) -> str:
    """The request in a few words: "2×8 H100 with at least 80 GiB in one NVLink domain"."""
    memory = f" with at least {format_memory(request.gpu_memory_bytes)}" if request.gpu_memory_bytes else ""
    beside = [f"{request.cpus:g} CPUs"] if request.cpus else []
    beside += [format_memory(request.memory_bytes)] if request.memory_bytes else []
    memory += f", {' and '.join(beside)} on each node" if beside else ""
    if request.devices == 0:
        place = ""
    elif request.topology is Topology.DOMAIN and request.devices > 1:
        place = " in one NVLink domain"
    elif request.topology in LEVELS and request.nodes > 1:
        place = f" in one {request.topology}"
    elif request.topology is Topology.SPREAD and request.nodes > 1:
        place = ", each member in another rack"
    elif request.topology is Topology.NODE_DOMAIN and request.devices_per_node > 1:
        place = " in one NVLink domain" if request.nodes == 1 else ", each member in one NVLink domain"
    elif request.nodes == 1 and request.devices_per_node > 1:
        place = " on one node"
    else:
        place = ""
    return f"{request.describe()}{memory}{place}"


def above_highest_priority(request: GangRequest, team: Team) -> Reason:
    """The request asks for more than its team may."""
    return Reason(
        code=ReasonCode.INVALID_REQUEST,
        text=f"priority: {request.priority} is above {team.highest_priority}, the highest that team {team.name} may "
        f"ask for; lower it, or `dsec team set {team.name} --highest-priority {request.priority}`",
    )


def unknown_team(name: str, teams: Iterable[str]) -> Reason:
    """The work queue is not a team."""
    known = ", ".join(sorted(teams)) or "not defined yet"
    return Reason(code=ReasonCode.UNKNOWN_TEAM, text=f"unknown team {name}; teams are {known}; `dsec team add {name}`")


def never_fits(fleet: Fleet, pool: ResourcePool, everything: View, request: GangRequest, smallest: Shape) -> Reason:
    """Not even the empty cluster holds it; says the largest that would fit."""
    models = ", ".join(sorted({kind.model for kind in fleet.classes}))
    if not fleet.classes:
        text = f"needs {wanted(request)}, but this cluster has no GPU"
    elif not pool.classes:
        known = {kind.model.casefold() for kind in fleet.classes}
        wished = {model.casefold() for model in request.gpu_models}
        if request.share is not None:
            cut = ", ".join(sorted({kind.profile for kind in fleet.classes if kind.profile})) or "nothing"
            text = f"needs {wanted(request)}; GPUs here are cut into {cut}"
        elif wished and not wished & known:
            text = f"unknown GPU model {' or '.join(request.gpu_models)}; models here are {models}"
        else:
            sized = [k for k in fleet.classes if not wished or k.model.casefold() in wished] or list(fleet.classes)
            most = max(sized, key=lambda kind: kind.memory_bytes)
            text = (
                f"needs {wanted(request)}; the largest GPU here has {format_memory(most.memory_bytes)} ({most.model})"
            )
    else:
        text = f"needs {wanted(request)}, which this cluster can never hold; the largest that fits is "
        text += _largest(fleet, everything, request, smallest)
    return Reason(code=ReasonCode.NEVER_FITS, text=text)


def _largest(fleet: Fleet, everything: View, request: GangRequest, smallest: Shape) -> str:
    """The most members of this size that fit, or the largest single member."""
    members = [
        n
        for n in range(smallest.members - 1, 0, -1)
        if fits(fleet, everything, Shape(n, smallest.devices, smallest.topology))
    ][:1]
    if members:
        model = request.gpu_model or ("GPU" if members[0] * smallest.devices == 1 else "GPUs")
        return f"{members[0]}×{smallest.devices} {model}" if members[0] > 1 else f"{smallest.devices} {model}"
    for devices in range(smallest.devices - 1, 0, -1):
        if fits(fleet, everything, Shape(1, devices, smallest.topology)):
            return f"{devices} {request.gpu_model or ('GPU' if devices == 1 else 'GPUs')} per node"
    return "nothing"


def over_team_limit(request: GangRequest, team: Team, devices: int, ceiling: int) -> Reason:
    """More than the team could ever hold."""
    if not request.evictable and (team.limit_devices is None or devices <= team.limit_devices):
        text = (
            f"needs {gpus(devices)} and cannot be evicted, so it must fit into the {team.nominal_devices} that team "
            f"{team.name} owns; raise them with `dsec team set {team.name}` or make it preemptible"
        )
    else:
        borrowed = f" ({team.nominal_devices} of its own + {team.borrow_devices} borrowed)"
        text = (
            f"needs {gpus(devices)}, but team {team.name} may hold at most {ceiling}{borrowed}; ask for less or "
            f"`dsec team set {team.name}`"
        )
    return Reason(code=ReasonCode.OVER_TEAM_LIMIT, text=text)


def frozen(why: str, what: str) -> Reason:
    """An operator has closed admission."""
    return Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"admission to {what} is frozen: {why}")


def held_back(text: str) -> Reason:
    """An operator keeps this one run waiting."""
    return Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"held back {text}")


def withheld(request: GangRequest, by: str) -> Reason:
    """Enough is free, but kept for others or to be emptied."""
    return Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"needs {wanted(request)}; what is free is kept: {by}")


def waits_for_parent(parent: str, request: GangRequest) -> Reason:
    """The devices it needs are held by the run that waits for it."""
    return Reason(
        code=ReasonCode.WAITS_FOR_PARENT,
        text=f"needs {wanted(request)}, held by run {parent}, which waits for this run; start it without waiting, or "
        "let the parent ask for no GPU",
    )


def waits_for_quota(request: GangRequest, team: Team, used: int, ceiling: int) -> Reason:
    """Its team has to give something back first."""
    own = "" if request.evictable else "; what cannot be evicted does not borrow"
    return Reason(
        code=ReasonCode.WAITS_FOR_QUOTA,
        text=f"needs {wanted(request)}; team {team.name} uses {used} of the {gpus(ceiling)} it may hold{own}",
    )


def waits_for_person(request: GangRequest, team: Team, user: str) -> Reason:
    """Whoever started it holds what one person may."""
    who = user or "runs that name no user (tag one with user:NAME)"
    return Reason(
        code=ReasonCode.WAITS_FOR_QUOTA,
        text=f"needs {wanted(request)}; in team {team.name} one person may hold {gpus(team.user_devices or 0)}, and "
        f"{who} would hold more",
    )


def waits_for_others(request: GangRequest, mine: int, total: int, kept_until: float | None, now: float) -> Reason:
    """There is room for it among what is `total` free, but all but `mine` is kept for the head of line."""
    until = "" if kept_until is None else f", which starts in about {format_duration(kept_until - now)}"
    text = f"needs {wanted(request)}; {mine} of {total} free, the others are kept for the first in line{until}"
    return Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text=text)


def waits_for_capacity(request: GangRequest, shape: Shape, total: int, best: str) -> Reason:
    """Of what is `total` free, too little, or not in this shape: `best` says how close it comes."""
    needs = f"needs {wanted(request)}"
    if total >= shape.total:
        return Reason(code=ReasonCode.FRAGMENTED, text=f"{needs}; {total} free but not in this shape: {best}")
    return Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text=f"{needs}; {best}")


def best(fleet: Fleet, view: View, shape: Shape) -> str:
    """How close the free devices come to the shape, in words, and what is lacking beside them."""
    text, hosts = _closest(fleet, view, shape), view.hosts
    if hosts is None or not fits(fleet, replace(view, hosts=None), shape):
        return text
    lacking = []
    for name, cpus, memory in (
        (f"{shape.cpu_milli / 1000:g} CPUs", shape.cpu_milli, 0),
        (format_memory(shape.memory_mib * 2**20), 0, shape.memory_mib),
    ):
        able = int(np.count_nonzero(hosts.able(cpus, memory) & (view.node_free >= shape.devices)))
        if able < shape.members:
            nodes, have = ("no node" if not able else "1 node", "has") if able < 2 else (f"{able} nodes", "have")
            lacking.append(f"{nodes} with enough free cards {have} {name} free")
    return ", ".join([text, *lacking])


def _closest(fleet: Fleet, view: View, shape: Shape) -> str:
    if shape.topology is Topology.DOMAIN and shape.total > 1:
        linked = fleet.island_domain >= 0
        room: Ints = np.bincount(fleet.island_domain[linked], view.island_free[linked]).astype(np.int64)
        return f"{int(room.max(initial=0))} free in the best domain"
    if shape.topology is Topology.NODE_DOMAIN and shape.devices > 1:
        linked_free = np.where(fleet.island_domain >= 0, view.island_free, 0)
        if shape.members == 1:
            return f"{int(linked_free.max(initial=0))} free in the best domain"
        count = len(np.unique(fleet.island_node[linked_free >= shape.devices]))
        return f"{count} of {shape.members} nodes have {shape.devices} free in one domain"
    if shape.members == 1:
        free = int(view.node_free.max(initial=0))
        return f"{free} free on the best node" if shape.devices > 1 or free else "none free"
    if shape.topology in LEVELS:
        level = fleet.named_levels[LEVELS[shape.topology]]
        able = level[(view.node_free >= shape.devices) & (level >= 0)]
        most = int(np.bincount(able, minlength=1).max())
        return f"{most} of {shape.members} nodes have {shape.devices} free in the best {shape.topology}"
    count = int(np.count_nonzero(view.node_free >= shape.devices))
    return f"{int(view.node_free.sum())} free, {count} of {shape.members} nodes have {shape.devices}"


def no_open_node(request: GangRequest, closed: Mapping[str, str], nodes: Collection[str]) -> Reason:
    """A gang without devices finds no node that takes work, or none that has what it asks for."""
    if closed and len(closed) == len(nodes):
        return frozen(next(iter(sorted(closed.items())))[1], "every node")
    if request.cpus or request.memory_bytes:
        text = f"needs {wanted(request)}; no open node has so much free for it"
        return Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text=text)
    return Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text="needs a node; none takes work now")


def kept_for_the_first(request: GangRequest, until: float, now: float) -> Reason:
    """A gang without devices finds room that is kept for the head of a line."""
    then = f", which starts in about {format_duration(until - now)}" if until < inf else ""
    text = f"needs {wanted(request)}; what is free is kept for the first in line{then}"
    return Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text=text)


def waits_for_victims(request: GangRequest, count: int) -> Reason:
    """Others are leaving for it."""
    who = "1 gang" if count == 1 else f"{count} gangs"
    return Reason(code=ReasonCode.WAITS_FOR_VICTIMS, text=f"needs {wanted(request)}; {who} leaving to make room")


def backing_off(until: float, now: float) -> Reason:
    """Its last start failed."""
    return Reason(
        code=ReasonCode.BACKING_OFF,
        text=f"the last start failed; tried again in {format_duration(until - now)}",
    )
