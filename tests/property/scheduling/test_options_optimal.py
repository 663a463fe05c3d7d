"""Moves, shrinkings and evictions on one scale of cost, against an oracle that tries every combination of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

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
    seeks: tuple[int, int] | None = None
    """Members and devices each, that need another place."""


def ways(gang: RunningGang, nodes: int, priority: int, moves: bool) -> Iterator[Way]:
    yield Way(0.0, (0,) * nodes)
    members, each = gang.placement.members, gang.request.devices_per_node
    on = [int(member.node[1:]) for member in members]
    size, stake = len(members) * each, NOW - (gang.last_commit_at or gang.started_at)

    def frees(gone: list[int]) -> tuple[int, ...]:
        return tuple(sum(each for i in gone if on[i] == n) for n in range(nodes))

    everybody = list(range(len(members)))
    if gang.request.priority < priority:
        yield Way(size * (OVERHEAD + stake + POLICY.eviction_lambda_seconds * gang.evictions), frees(everybody))
        for count in range(1, len(members) - (gang.request.min_nodes or len(members)) + 1):
            for gone in combinations(everybody[1:], count):
                yield Way((size - count * each) * OVERHEAD + size * stake, frees(list(gone)))
    if moves and gang.request.priority <= priority:
        yield Way(size * (OVERHEAD + stake), frees(everybody), (len(members), each))


def settle(free: list[int], movers: list[tuple[int, int]]) -> bool:
    """Whether all movers find places in `free` devices by node, by trying every one."""
    if not movers:
        return True
    (members, each), rest = movers[0], movers[1:]
    for on in combinations([n for n, count in enumerate(free) if count >= each], members):
        if settle([count - each * (n in on) for n, count in enumerate(free)], rest):
            return True
    return False


def cheapest(free: list[int], held: list[RunningGang], want: GangRequest, *, moves: bool = True) -> float | None:
    best = None
    for chosen in product(*(tuple(ways(gang, len(free), want.priority, moves)) for gang in held)):
        cost = sum(way.cost for way in chosen)
        if best is not None and cost >= best - 1e-9:
            continue
        freed = [sum(way.frees[n] for way in chosen) for n in range(len(free))]
        movers = sorted((way.seeks for way in chosen if way.seeks), reverse=True)
        each = want.devices_per_node
        for on in combinations([n for n in range(len(free)) if free[n] + freed[n] >= each], want.nodes):
            # The gang takes freed devices first: what is free now is for those who move.
            left = [free[n] - max(0, each - freed[n]) * (n in on) for n in range(len(free))]
            if settle(left, movers):
                best = cost
                break
    return best


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_way_to_make_room_costs_as_little_as_the_cheapest_of_all_combinations(data):
    draw = data.draw
    sizes = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=2, max_size=3))
    cluster = [node(f"n{i}", size) for i, size in enumerate(sizes)]
    room = [[f"n{i}/{k}" for k in range(size)] for i, size in enumerate(sizes)]
    held = []
    for i in range(draw(st.integers(2, 5))):
        each = draw(st.integers(1, 2))
        hosts = [n for n in draw(st.permutations(range(len(sizes)))) if len(room[n]) > each or draw(st.booleans())]
        hosts = [n for n in hosts if len(room[n]) >= each][: draw(st.integers(1, 3))]
        if not hosts:
            continue
        members = tuple(
            MemberPlacement(node=f"n{n}", devices=tuple(room[n].pop(0) for _ in range(each))) for n in hosts
        )
        held.append(
            RunningGang(
                run_id=f"r{i}",
                team="a",
                request=GangRequest(
                    nodes=len(hosts), devices_per_node=each, priority=draw(st.sampled_from([0, 0, 3, 5])),
                    min_nodes=draw(st.sampled_from([None, 1])),
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
        nodes=draw(st.integers(1, 2)), devices_per_node=draw(st.integers(1, 4)), priority=draw(st.sampled_from([0, 3]))
    )
    gang = QueuedGang(run_id="q", team="a", request=want, submitted_at=NOW, eligible_at=NOW)
    teams = {"a": Team(name="a", nominal_devices=1000)}
    result = plan(build_snapshot(nodes=cluster, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    free = [len(uuids) for uuids in room]
    best = cheapest(free, held, want)
    if best is None:
        assert result.admits == ()
        return
    if not result.admits:
        # In the seats that it would take, somebody who has to move finds no other place.
        assert cheapest(free, held, want, moves=False) is None
        return
    (admit,) = result.admits
    for kind in ("victims", "resizes", "moves"):
        event(f"{kind}: {bool(getattr(admit, kind))}, proved: {admit.optimal}")
    cost = sum(entry.cost for entry in (*admit.victims, *admit.resizes, *admit.moves))
    assert cost >= best - 1e-6, "cheaper than anything there is"
    if admit.optimal:
        assert cost <= best + 1e-6
