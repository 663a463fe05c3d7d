"""Nobody waits for ever, and nobody who passes the head of line makes it wait longer."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.reasons import NEEDS_A_CHANGE
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy, QueuedGang, RunningGang
from tests.property.scheduling import worlds
from tests.property.scheduling.pool import Pool

NOW = worlds.NOW


def sound(nodes: list[Node]) -> list[Node]:
    """The same nodes, all open and all devices healthy: what is broken would make some wait for ever."""
    return [
        replace(
            node,
            schedulable=True,
            devices=tuple(replace(device, health=Health.HEALTHY) for device in node.devices),
        )
        for node in nodes
    ]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_feasible_gang_starts_within_the_runtime_of_all_others(data):
    """Nothing arrives and everything ends: then the last start comes before all have run one after another."""
    cluster = sound(data.draw(worlds.nodes(least=2, most=4)))
    queue = data.draw(worlds.queues(most=6, max_runtime_seconds=data.draw(st.sampled_from([60.0, 600.0, 7200.0]))))
    queue = [replace(gang, not_before=None) for gang in queue]
    held = [
        replace(gang, evicting=False, request=replace(gang.request, max_runtime_seconds=6000.0))
        for gang in data.draw(worlds.running(cluster, most=5))
    ]
    pool = Pool(
        cluster, data.draw(worlds.teams()), data.draw(st.sampled_from([Policy(), Policy(consolidation=True)])), NOW
    )
    pool.put(*held)
    pool.submit(*queue)
    work = sum(gang.request.max_runtime_seconds or 0.0 for gang in (*queue, *held))
    hand_overs = 0
    for _ in range(200):
        result = pool.cycle()
        if result.admits:
            pool.advance(1.0)
            hand_overs += 1
            pool.victims_leave()
            continue
        stuck = {hold.run_id for hold in result.holds if hold.reason.code not in NEEDS_A_CHANGE}
        if not stuck:
            break
        pause = pool.next_end()
        assert pause is not None, f"{stuck} wait for nobody: {[h.reason.text for h in result.holds]}"
        pool.advance(pause + 1e-3)
    assert not stuck
    late = {name: at - NOW for name, at in pool.started.items() if at - NOW > work + 200}
    assert not late, f"within {work} s: {late}"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_with_enforced_limits_the_head_of_line_never_starts_after_its_first_estimate(data):
    """EASY's promise, by shape: whatever arrives behind the head, on whatever condition it passes."""
    cluster = sound(data.draw(worlds.nodes(least=2, most=4)))
    teams = {"a": Team(name="a", nominal_devices=1000)}
    limits = st.sampled_from([300.0, 900.0, 3000.0])
    held = [
        replace(
            gang, team="a", evicting=False,
            request=replace(gang.request, priority=0, preemptible=False, max_runtime_seconds=data.draw(limits) + 5000),
        )
        for gang in data.draw(worlds.running(cluster, least=2, most=6))
    ]  # fmt: skip
    pool = Pool(cluster, teams, Policy(), NOW)
    pool.put(*held)
    for gang in held:
        pool.ran[gang.run_id] = 0.0
    wide = data.draw(worlds.requests(priority=0, kind=Kind.TRAINING, preemptible=True, max_runtime_seconds=600.0))
    head = QueuedGang(run_id="head", team="a", request=wide, submitted_at=NOW - 5000, eligible_at=NOW - 5000)
    pool.submit(head)
    first = {shadow.run_id: shadow for shadow in pool.cycle().shadows}.get("head")
    if first is None:
        return
    for number in range(data.draw(st.integers(1, 6))):
        request = replace(
            data.draw(worlds.requests(priority=0, topology=Topology.PREFERRED)),
            max_runtime_seconds=data.draw(st.one_of(st.none(), limits)),
        )
        pool.submit(QueuedGang(run_id=f"p{number}", team="a", request=request, submitted_at=NOW, eligible_at=NOW))
    start = first.start
    while "head" not in pool.started and pool.now <= first.start + 1:
        result = pool.cycle()
        now_planned = {shadow.run_id: shadow.start for shadow in result.shadows}.get("head")
        if now_planned is not None:
            assert now_planned <= start + 1e-6, "the shadow moved later"
            start = min(start, now_planned)
        pool.advance(max(1.0, min(next_moments(pool, first.start))))
        pool.victims_leave()
    assert pool.started.get("head", float("inf")) <= first.start + 1, "later than promised"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_with_enforced_limits_a_head_without_cards_never_starts_after_its_first_estimate(data):
    """The same promise in the line of those that ask for no card, whatever keeps arriving, with cards and without."""
    cluster = [replace(node, cpus=8.0) for node in sound(data.draw(worlds.nodes(least=1, most=3)))]
    limits = st.sampled_from([300.0, 900.0, 3000.0])
    teams = {"a": Team(name="a", nominal_devices=1000), "b": Team(name="b", nominal_devices=1000)}
    pool = Pool(cluster, teams, Policy(), NOW)
    for number, node in enumerate(cluster):
        request = GangRequest(cpus=data.draw(st.sampled_from([4.0, 5.0, 6.0])), max_runtime_seconds=data.draw(limits))
        place = Placement(members=(MemberPlacement(node=node.name),))
        pool.put(
            RunningGang(
                run_id=f"r{number}", team="a", request=request, placement=place, submitted_at=NOW, started_at=NOW
            )
        )

    def arrival(name, at, cpus, *, devices=0, **more):
        limit = data.draw(st.one_of(st.none(), limits))
        asked = {"cpus": data.draw(st.sampled_from(cpus)), "max_runtime_seconds": limit, **more}
        request = worlds.requests(
            priority=0,
            devices_per_node=devices,
            gpu_model=None,
            memory_bytes=None,
            topology=Topology.PREFERRED,
            **asked,
        )
        team = data.draw(st.sampled_from(["a", "b"]))
        return QueuedGang(run_id=name, team=team, request=data.draw(request), submitted_at=at, eligible_at=at)

    head = arrival("head", NOW - 5000, [4.0, 5.0, 8.0], max_runtime_seconds=600.0, kind=Kind.TRAINING, preemptible=True)
    assume(sum(node.cpus // head.request.cpus for node in cluster) >= head.request.nodes)
    pool.submit(head)
    shadows = {shadow.run_id: shadow.start for shadow in pool.cycle().shadows}
    if "head" in pool.started:
        return
    start, number = shadows["head"], 0
    first = start
    while "head" not in pool.started and pool.now <= first + 1:
        for _ in range(data.draw(st.integers(1, 3))):
            pool.submit(arrival(f"n{number}", pool.now, [1.0, 2.0, 3.0], devices=data.draw(st.sampled_from([0, 0, 1]))))
            number += 1
        planned = {shadow.run_id: shadow.start for shadow in pool.cycle().shadows}.get("head")
        if planned is not None:
            assert planned <= start + 1e-6, "the shadow moved later"
            start = min(start, planned)
        there = [gang for gang in pool.running.values() if not gang.promised]
        assert not [node.name for node in cluster if Pool.overdrawn(node, there)]
        pool.advance(max(1.0, min(next_moments(pool, first))))
        pool.victims_leave()
    assert pool.started.get("head", float("inf")) <= first + 1, "later than promised"


def next_moments(pool: Pool, start: float) -> list[float]:
    """Seconds until a gang ends, a passer has to be told, or the head is to start."""
    due = [
        gang.conditional_until - 10.0 - gang.request.grace_seconds - pool.now
        for gang in pool.running.values()
        if gang.conditional_until is not None
    ]
    ends = pool.next_end()
    return [seconds for seconds in [*due, start - pool.now, *([] if ends is None else [ends])] if seconds > 0] or [1.0]


def test_a_passer_is_told_in_time_when_another_holders_contract_ends_just_as_the_head_is_to_start():
    nodes = [_node("n0"), _node("n1")]
    pool = Pool(nodes, {"a": Team(name="a", nominal_devices=1000)}, Policy(), NOW)
    lasting = GangRequest(nodes=1, devices_per_node=1, preemptible=False, max_runtime_seconds=5300.0)
    held = {**{f"n0/{index}": 900.0 for index in range(4)}, "n1/0": 0.0}
    for device, later in held.items():
        request = replace(lasting, max_runtime_seconds=5300.0 + later)
        place = Placement(members=(MemberPlacement(node=device[:2], devices=(device,)),))
        pool.put(
            RunningGang(run_id=device, team="a", request=request, placement=place, submitted_at=NOW, started_at=NOW)
        )
    four = GangRequest(nodes=1, devices_per_node=4, max_runtime_seconds=600.0)
    pool.submit(QueuedGang(run_id="head", team="a", request=four, submitted_at=NOW - 5000, eligible_at=NOW - 5000))
    (shadow,) = pool.cycle().shadows
    endless = GangRequest(nodes=1, devices_per_node=1)
    pool.submit(QueuedGang(run_id="passer", team="a", request=endless, submitted_at=NOW, eligible_at=NOW))
    pool.cycle()
    assert pool.running["passer"].conditional_until == shadow.start
    pool.advance(shadow.start - 10.0 - endless.grace_seconds - pool.now)
    pool.cycle()
    assert pool.running["passer"].evicting


def _node(name: str) -> Node:
    devices = tuple(
        Device(uuid=f"{name}/{index}", node=name, index=index, model="H100", memory_bytes=1 << 36, nvlink_domain=name)
        for index in range(4)
    )
    return Node(name=name, devices=devices, topology=("z", "r0"))
