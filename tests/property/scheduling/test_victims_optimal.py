"""The victims against an oracle that tries every set, written without any of the code it checks."""

from collections.abc import Iterable
from functools import cache
from itertools import combinations
from math import exp

from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang, build_snapshot, plan
from tests.property.scheduling import worlds

NOW = worlds.NOW
POLICY = Policy()


def places(cluster: list[Node], free: set[str], wants: GangRequest) -> bool:
    """Whether the shape fits on `free`, by trying every combination of nodes."""
    n, k = wants.nodes, wants.devices_per_node
    offers: dict[str, list[tuple[str, str]]] = {}
    for machine in cluster:
        if machine.schedulable:
            offers[machine.name] = [
                (device.uuid, device.nvlink_domain)
                for device in machine.devices
                if device.uuid in free and device.health is Health.HEALTHY and wants.gpu_model in (None, device.model)
            ]
    for hosts in combinations(sorted(offers), n):
        if wants.topology is Topology.PREFERRED or n * k == 1:
            if all(len(offers[host]) >= k for host in hosts):
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
            if places(cluster, freed, gang.request) and may_go(chosen, gang, used, teams):
                best = cost
    return best


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_the_victims_cost_as_much_as_the_cheapest_of_all_sets(data):
    cluster = data.draw(worlds.nodes(least=2, most=4))
    held = data.draw(worlds.running(cluster, least=5, most=11))
    teams = data.draw(worlds.teams())
    (gang,) = data.draw(
        worlds.queues(most=1, priority=data.draw(st.sampled_from([1, 2, 3, 4])), max_runtime_seconds=None)
    )
    result = plan(build_snapshot(nodes=cluster, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    if gang.not_before is not None:
        assert result.admits == ()
        return
    expected = cheapest(cluster, held, gang, teams)
    if expected is None:
        assert result.admits == ()
    else:
        (admit,) = result.admits
        assert admit.optimal
        assert abs(sum(victim.cost for victim in admit.victims) - expected) < 1e-6


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_search_with_hardly_any_budget_never_evicts_more_than_it_needs(data):
    cluster = data.draw(worlds.nodes(most=5))
    held = data.draw(worlds.running(cluster, least=6, most=12))
    teams = data.draw(worlds.teams())
    (gang,) = data.draw(worlds.queues(most=1, priority=3))
    policy = Policy(search_budget=data.draw(st.integers(1, 40)), exact_candidates=data.draw(st.integers(0, 4)))
    result = plan(build_snapshot(nodes=cluster, running=held, teams=teams, pool="p"), [gang], policy, NOW)
    for admit in result.admits:
        victims = {victim.run_id for victim in admit.victims}
        used = {n: sum(len(g.placement.devices) for g in held if g.team == n and not g.evicting) for n in teams}
        by_id = {g.run_id: g for g in held}
        taken = {uuid for g in held if not g.evicting for uuid in g.placement.devices}
        every = {device.uuid for machine in cluster for device in machine.devices}
        for left_out in victims:
            rest = [by_id[name] for name in victims - {left_out}]
            freed = (every - taken) | {uuid for g in rest for uuid in g.placement.devices}
            assert not (places(cluster, freed, gang.request) and may_go(rest, gang, used, teams))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_in_a_crowded_cluster_many_victims_are_still_the_cheapest_set(data):
    draw = data.draw
    shared = draw(st.booleans())
    cluster = [
        Node(
            name=f"n{i}",
            devices=tuple(
                Device(
                    uuid=f"n{i}/{k}",
                    node=f"n{i}",
                    index=k,
                    model="H100",
                    memory_bytes=1,
                    nvlink_domain=f"d{i // 2}" if shared else f"n{i}",
                )
                for k in range(4)
            ),
        )
        for i in range(4)
    ]
    held, free = [], [[f"n{i}/{k}" for k in range(4)] for i in range(4)]
    while len(held) < 11 and any(free):
        width = draw(st.integers(1, 2))
        hosts = [i for i in draw(st.permutations(range(4))) if len(free[i]) >= width][: draw(st.integers(1, 2))]
        if not hosts:
            break
        young = draw(st.integers(0, 3)) == 3
        held.append(
            RunningGang(
                run_id=f"r{len(held)}",
                team=draw(st.sampled_from(worlds.TEAMS)),
                request=GangRequest(
                    nodes=len(hosts), devices_per_node=width, priority=draw(st.sampled_from([0, 0, 0, 5]))
                ),
                placement=Placement(
                    members=tuple(
                        MemberPlacement(node=f"n{i}", devices=tuple(free[i].pop(0) for _ in range(width)))
                        for i in hosts
                    )
                ),
                submitted_at=NOW - 9000,
                started_at=NOW - 10 if young else NOW - 9000 + len(held),
                first_commit_at=None if young else NOW - 8000,
                last_commit_at=NOW - draw(st.integers(0, 60)),
            )
        )
    teams = {
        name: Team(name=name, nominal_devices=draw(st.sampled_from([0, 2, 5])), borrow_devices=draw(limit))
        for name, limit in zip(worlds.TEAMS, [st.none(), st.sampled_from([4, 6]), st.none()], strict=True)
    }
    nodes, devices, topology = draw(
        st.sampled_from(
            [
                (1, 4, Topology.PREFERRED),
                (2, 2, Topology.PREFERRED),
                (3, 2, Topology.PREFERRED),
                (2, 4, Topology.DOMAIN),
                (2, 3, Topology.DOMAIN),
                (3, 3, Topology.NODE_DOMAIN),
            ]
        )
    )
    gang = QueuedGang(
        run_id="q",
        team=draw(st.sampled_from(worlds.TEAMS)),
        request=GangRequest(nodes=nodes, devices_per_node=devices, topology=topology, priority=3),
        submitted_at=NOW,
        eligible_at=NOW,
    )
    result = plan(build_snapshot(nodes=cluster, running=held, teams=teams, pool="p"), [gang], POLICY, NOW)
    expected = cheapest(cluster, held, gang, teams)
    if expected is None:
        assert result.admits == ()
    else:
        assert result.admits[0].optimal
        assert abs(sum(victim.cost for victim in result.admits[0].victims) - expected) < 1e-6
