"""The world that the cycle benchmark plans for: 95 % full, 40 teams in three levels, 2,000 kinds of gangs in line.

Three divisions, nine departments below them, 28 teams below those; all 40 submit. The first division runs inference
services of one or two GPUs, which nobody may evict and which do not borrow; it has what it owns, and its nodes have
holes of one to three GPUs. The other two train on four GPUs a node and more, which no hole can hold, so the cluster is
95 % full at rest and the line has every common reason: quota, capacity, and room that is not in the right shape.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import QueuedGang, RunningGang, Snapshot, build_snapshot

NOW = 1_800_000_000.0
SEED = 7
DIVISIONS, DEPARTMENTS, TEAMS, KINDS = 3, 9, 40, 50
FULL = 0.95
SMALL = ((1, 1), (1, 1), (1, 2))
LARGE = ((1, 4), (1, 8), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8))
LIMITS = (None, None, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
PRIORITIES = (0, 0, 10, 50)
URGENT = 90


@dataclass(frozen=True)
class World:
    """A cluster, what runs on it, and who waits."""

    nodes: tuple[Node, ...]
    running: tuple[RunningGang, ...]
    queue: tuple[QueuedGang, ...]
    teams: dict[str, Team]
    kinds: tuple[tuple[str, GangRequest], ...]
    """Team and request of every kind of gang that may arrive."""

    def snapshot(self) -> Snapshot:
        """Built from nothing."""
        return build_snapshot(nodes=self.nodes, running=self.running, teams=self.teams, pool="gpus")


def build_world(*, nodes: int, waiting: int, full: float = FULL, seed: int = SEED) -> World:
    """Racks of 16 nodes; three quarters H100 of one domain per node, the rest A100."""
    dice = random.Random(seed)
    cluster, teams = _cluster(nodes), team_tree(nodes * 8)
    kinds = _kinds(dice, teams)
    running = tuple(_running(dice, cluster, teams)) if full else ()
    queue = [arrival(dice, f"wait-{i:05}", *kinds[i % len(kinds)]) for i in range(waiting)]
    return World(nodes=cluster, running=running, queue=tuple(queue), teams=teams, kinds=kinds)


def arrival(
    dice: random.Random, run_id: str, team: str, request: GangRequest, waited: float | None = None
) -> QueuedGang:
    """A gang of that kind, which has waited up to three hours unless told."""
    submitted = NOW - (dice.uniform(60, 3 * 3600) if waited is None else waited)
    return QueuedGang(run_id=run_id, team=team, request=request, submitted_at=submitted, eligible_at=submitted)


def urgent(dice: random.Random, run_id: str, world: World, now: float) -> QueuedGang:
    """A gang that may evict."""
    team, request = dice.choice(world.kinds)
    asked = {"nodes": request.nodes, "devices_per_node": request.devices_per_node, "gpu_model": request.gpu_model}
    return arrival(dice, run_id, team, GangRequest(**asked, priority=URGENT), NOW - now)  # type: ignore[arg-type]


def one_gpu_shapes(count: int = 64) -> list[GangRequest]:
    """So many kinds of one-GPU gangs: 4 constraints on the model, 4 topologies, and as many run times as it takes."""
    limits = LIMITS[1:5] if count <= 64 else tuple(600.0 * n for n in range(1, count // 16 + 2))
    return [
        GangRequest(devices_per_node=1, gpu_model=model, topology=topology, max_runtime_seconds=limit)
        for limit in limits
        for model in (None, "H100", "A100", "H100|A100")
        for topology in (Topology.PREFERRED, Topology.NODE_DOMAIN, Topology.DOMAIN, Topology.RACK)
    ][:count]


def team_tree(devices: int) -> dict[str, Team]:
    """Every team owns the same; the first division may not borrow."""
    owned = devices // TEAMS
    first = devices - owned * (TEAMS - 1)
    teams = {}
    for number in range(TEAMS):
        name = f"team-{number:02}"
        parent = None
        if number >= DIVISIONS + DEPARTMENTS:
            parent = f"team-{DIVISIONS + number % DEPARTMENTS:02}"
        elif number >= DIVISIONS:
            parent = f"team-{number % DIVISIONS:02}"
        teams[name] = Team(
            name=name,
            nominal_devices=owned if number else first,
            borrow_devices=0 if number == 0 else None,
            parent=parent,
        )
    return teams


def division_of(name: str, teams: dict[str, Team]) -> str:
    """The top of the team's path."""
    while (parent := teams[name].parent) is not None:
        name = parent
    return name


def _cluster(nodes: int) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=f"node-{i:05}",
            topology=(f"zone-{i % 2}", f"rack-{i // 16:04}"),
            devices=tuple(
                Device(
                    uuid=f"GPU-{i:05}-{k}",
                    node=f"node-{i:05}",
                    index=k,
                    model="H100" if i % 4 else "A100",
                    memory_bytes=80 * 2**30,
                    nvlink_domain=f"nv-{i:05}",
                )
                for k in range(8)
            ),
        )
        for i in range(nodes)
    )


def _kinds(dice: random.Random, teams: dict[str, Team]) -> tuple[tuple[str, GangRequest], ...]:
    """50 for each team."""
    found: list[tuple[str, GangRequest]] = []
    for name in teams:
        shapes = SMALL if division_of(name, teams) == "team-00" else LARGE
        kinds: list[GangRequest] = []
        seen = set()
        while len(kinds) < KINDS:
            width, per = dice.choice(shapes)
            choice = (
                width, per, dice.choice((None, "H100", "H100", "A100")), dice.choice(PRIORITIES),
                dice.choice((Topology.PREFERRED, Topology.PREFERRED, Topology.NODE_DOMAIN)), dice.choice(LIMITS),
                Kind.INFERENCE if shapes is SMALL else dice.choice((Kind.TRAINING, Kind.TRAINING, Kind.BATCH)),
            )  # fmt: skip
            if choice not in seen:
                seen.add(choice)
                kinds.append(
                    GangRequest(
                        nodes=width, devices_per_node=per, gpu_model=choice[2], priority=choice[3],
                        topology=choice[4], max_runtime_seconds=choice[5], kind=choice[6],
                    )
                )  # fmt: skip
        found.extend((name, request) for request in kinds)
    dice.shuffle(found)
    return tuple(found)


def _running(dice: random.Random, cluster: Sequence[Node], teams: dict[str, Team]) -> Iterator[RunningGang]:
    """The first division on nodes with holes, up to its limit; the others fill theirs."""
    number = count()
    small = [name for name in teams if division_of(name, teams) == "team-00"]
    large = [name for name in teams if name not in small]
    owned = sum(teams[name].nominal_devices for name in small)
    devices = sum(len(node.devices) for node in cluster)
    holes = round(devices * (1 - FULL))
    order = list(cluster)
    dice.shuffle(order)
    holed, order = order[: -(-(owned + holes) // 8)], order[-(-(owned + holes) // 8) :]
    left = owned
    for index, node in enumerate(holed):
        # Spread what is left over the nodes that are left: the holes come out at one to three devices each.
        most = -(-left // (len(holed) - index))
        taken = min(left, 8, max(5, most + dice.choice((-1, 0, 0, 1))))
        at, left = 0, left - taken
        while at < taken:
            per = min(taken - at, dice.choice(SMALL)[1])
            yield _running_gang(dice, next(number), dice.choice(small), Kind.INFERENCE, [(node, at, per)])
            at += per
    order.sort(key=lambda node: node.name)
    index = 0
    while index < len(order):
        width, per = dice.choice(LARGE)
        if index + width > len(order):
            width, per = 1, 8
        for part in range(8 // per if width == 1 else 1):
            places = [(order[index + n], part * per, per) for n in range(width)]
            kind = dice.choice((Kind.TRAINING, Kind.TRAINING, Kind.BATCH))
            yield _running_gang(dice, next(number), dice.choice(large), kind, places)
        index += width


def _running_gang(
    dice: random.Random, number: int, team: str, kind: Kind, places: Sequence[tuple[Node, int, int]]
) -> RunningGang:
    started = NOW - dice.uniform(10, 6 * 3600)
    limit = dice.choice(LIMITS)
    return RunningGang(
        run_id=f"run-{number:05}",
        team=team,
        request=GangRequest(
            nodes=len(places),
            devices_per_node=places[0][2],
            priority=dice.choice((0, 10, 50)),
            kind=kind,
            max_runtime_seconds=None if limit is None else limit + NOW - started,
        ),
        placement=Placement(
            members=tuple(
                MemberPlacement(node=node.name, devices=tuple(d.uuid for d in node.devices[at : at + per]))
                for node, at, per in places
            )
        ),
        submitted_at=started,
        started_at=started,
        first_commit_at=started + 5,
        last_commit_at=NOW - dice.uniform(0, 600),
    )
