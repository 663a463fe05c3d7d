"""Moves, shrinkings and evictions on one scale of cost, against an oracle that tries every combination of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf

from hypothesis import event, given, settings
from hypothesis import strategies as st

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang, build_snapshot, plan
from tests.property.scheduling import worlds
from tests.workers.scheduling.world import node

NOW = worlds.NOW
POLICY = Policy(consolidation=True, resizing=True)
OVERHEAD = POLICY.checkpoint_seconds + POLICY.restart_seconds


@dataclass(frozen=True)
class Way:
    """What one gang could do, by the numbers alone."""

    cost: float
    frees: tuple[int, ...]
    """Devices by node."""
    seeks: tuple[int, int, int] | None = None
    """Members, devices and processors each, that need another place."""
    cpus: tuple[int, ...] = ()
    """Processors by node."""


def ways(gang: RunningGang, nodes: int, priority: int, moves: bool) -> Iterator[Way]:
    yield Way(0.0, (0,) * nodes, cpus=(0,) * nodes)
    members, each, cpus = gang.placement.members, gang.request.devices_per_node, int(gang.request.cpus or 0)
    on = [int(member.node[1:]) for member in members]
    size, stake = len(members) * each, NOW - (gang.last_commit_at or gang.started_at)

    def way(cost: float, gone: list[int], seeks: tuple[int, int, int] | None = None) -> Way:
        there = [sum(on[i] == n for i in gone) for n in range(nodes)]
        return Way(cost, tuple(each * n for n in there), seeks, tuple(cpus * n for n in there))

    everybody = list(range(len(members)))
    if gang.request.priority < priority:
        yield way(size * (OVERHEAD + stake + POLICY.eviction_lambda_seconds * gang.evictions), everybody)
        for count in range(1, len(members) - (gang.request.min_nodes or len(members)) + 1):
            for gone in combinations(everybody[1:], count):
                yield way((size - count * each) * OVERHEAD + size * stake, list(gone))
    if moves and gang.request.priority <= priority:
        yield way(size * (OVERHEAD + stake), everybody, (len(members), each, cpus))


def settle(free: list[int], cpus: list[float], movers: list[tuple[int, int, int]]) -> bool:
    """Whether all movers find places in `free` devices and `cpus` by node, by trying every one."""
    if not movers:
        return True
    (members, each, needs), rest = movers[0], movers[1:]
    able = [n for n, count in enumerate(free) if count >= each and (not needs or cpus[n] >= needs)]
    for on in combinations(able, members):
        left = [count - each * (n in on) for n, count in enumerate(free)]
        if settle(left, [count - needs * (n in on) for n, count in enumerate(cpus)], rest):
            return True
    return False


def cheapest(
    free: list[int], idle: list[float], held: list[RunningGang], want: GangRequest, *, moves: bool = True
) -> float | None:
    """`free` devices and `idle` processors are by node."""
    best, needs = None, int(want.cpus or 0)
    for chosen in product(*(tuple(ways(gang, len(free), want.priority, moves)) for gang in held)):
        cost = sum(way.cost for way in chosen)
        if best is not None and cost >= best - 1e-9:
            continue
        freed = [sum(way.frees[n] for way in chosen) for n in range(len(free))]
        after = [idle[n] + sum(way.cpus[n] for way in chosen) for n in range(len(free))]
        movers = sorted((way.seeks for way in chosen if way.seeks), reverse=True)
        each = want.devices_per_node
        able = [n for n in range(len(free)) if free[n] + freed[n] >= each and (not needs or after[n] >= needs)]
        for on in combinations(able, want.nodes):
            # The gang takes freed devices first: what is free now is for those who move.
            left = [free[n] - max(0, each - freed[n]) * (n in on) for n in range(len(free))]
            # Who moves goes on in processors that are idle now, and the gang still finds its own when all have left.
            if settle(left, [min(idle[n], after[n] - needs * (n in on)) for n in range(len(free))], movers):
                best = cost
                break
    return best


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_way_to_make_room_costs_as_little_as_the_cheapest_of_all_combinations(data):
    draw = data.draw
    sizes = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=2, max_size=3))
    counted = draw(st.booleans())
    cpus = [draw(st.sampled_from([2.0, 4.0, 6.0])) if counted else None for _ in sizes]
    cluster = [replace(node(f"n{i}", size), cpus=cpus[i]) for i, size in enumerate(sizes)]
    idle = [inf if count is None else count for count in cpus]
    room = [[f"n{i}/{k}" for k in range(size)] for i, size in enumerate(sizes)]
    held = []
    for i in range(draw(st.integers(2, 5))):
        each = draw(st.integers(1, 2))
        hosts = [n for n in draw(st.permutations(range(len(sizes)))) if len(room[n]) > each or draw(st.booleans())]
        needs = draw(st.sampled_from([None, 1.0, 2.0])) if counted else None
        hosts = [n for n in hosts if len(room[n]) >= each and idle[n] >= (needs or 0)][: draw(st.integers(1, 3))]
        if not hosts:
            continue
        for n in hosts:
            idle[n] -= needs or 0
        members = tuple(
            MemberPlacement(node=f"n{n}", devices=tuple(room[n].pop(0) for _ in range(each))) for n in hosts
        )
        held.append(
            RunningGang(
                run_id=f"r{i}",
                team="a",
                request=GangRequest(
                    nodes=len(hosts), devices_per_node=each, priority=draw(st.sampled_from([0, 0, 3, 5])),
                    min_nodes=draw(st.sampled_from([None, 1])), cpus=needs,
                ),
                placement=Placement(members=members),
                submitted_at=NOW - 9000,
                started_at=NOW - 9000 + i,
                first_commit_at=NOW - 8000,
                last_commit_at=NOW - draw(st.integers(0, 200)),
                evictions=draw(st.integers(0, 1)),
            )
        )  # fmt: skip
    want = GangRequest(
        nodes=draw(st.integers(1, 2)), devices_per_node=draw(st.integers(1, 4)), priority=draw(st.sampled_from([0, 3])),
        cpus=draw(st.sampled_from([None, 2.0, 4.0])) if counted else None,
    )  # fmt: skip
    gang = QueuedGang(run_id="q", team="a", request=want, submitted_at=NOW, eligible_at=NOW)
    teams = {"a": Team(name="a", nominal_devices=1000)}
    result = plan(build_snapshot(nodes=cluster, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    free = [len(uuids) for uuids in room]
    best = cheapest(free, idle, held, want)
    if best is None:
        assert result.admits == ()
        return
    if not result.admits:
        # In the seats that it would take, somebody who has to move finds no other place.
        assert cheapest(free, idle, held, want, moves=False) is None
        return
    (admit,) = result.admits
    for kind in ("victims", "resizes", "moves"):
        event(f"{kind}: {bool(getattr(admit, kind))}, proved: {admit.optimal}")
    cost = sum(entry.cost for entry in (*admit.victims, *admit.resizes, *admit.moves))
    assert cost >= best - 1e-6, "cheaper than anything there is"
    if admit.optimal:
        assert cost <= best + 1e-6
