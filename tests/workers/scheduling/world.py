"""Small clusters and gangs in one line each, for tests of `plan()`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan

NOW = 1_000_000.0
GIB = 2**30
POLICY = Policy()


def node(
    name: str,
    gpus: int,
    *,
    model: str = "H100",
    memory: int = 80 * GIB,
    domain: str | None = None,
    islands: int = 1,
    rack: str | None = None,
    schedulable: bool = True,
    frozen: Sequence[int] = (),
) -> Node:
    """A node with `gpus` devices `NAME/0`…; one NVLink domain for the node (or `islands`), or the given one."""

    def domain_of(index: int) -> str:
        if domain is not None:
            return domain
        return name if islands == 1 else f"{name}.{index * islands // gpus}"

    return Node(
        name=name,
        topology=(rack,) if rack else (),
        schedulable=schedulable,
        devices=tuple(
            Device(
                uuid=f"{name}/{index}",
                node=name,
                index=index,
                model=model,
                memory_bytes=memory,
                nvlink_domain=domain_of(index),
                health=Health.FROZEN if index in frozen else Health.HEALTHY,
            )
            for index in range(gpus)
        ),
    )


def team(name: str, nominal: int, *, borrow: int | None = None, weight: float = 1.0, highest: int = 100) -> Team:
    return Team(name=name, nominal_devices=nominal, borrow_devices=borrow, weight=weight, highest_priority=highest)


def waiting(run_id: str, shape: str = "1", *, team: str = "a", waited: float = 60.0, **more: Any) -> QueuedGang:
    """`shape` is "8" (one node) or "2x8"; keywords of `GangRequest` and of `QueuedGang` both work."""
    fields = {name: more.pop(name) for name in tuple(more) if name in _QUEUED}
    return QueuedGang(
        run_id=run_id,
        team=team,
        request=request(shape, **more),
        **{"submitted_at": NOW - waited, "eligible_at": NOW - waited, **fields},
    )


def running(run_id: str, *devices: str, team: str = "a", ran: float = 3600.0, **more: Any) -> RunningGang:
    """A gang on these devices ("n1/0-3" is a range), which has committed just now unless told otherwise."""
    fields = {name: more.pop(name) for name in tuple(more) if name in _RUNNING}
    members: dict[str, list[str]] = {}
    for text in devices:
        name, _, numbers = text.partition("/")
        first, _, last = numbers.partition("-")
        members.setdefault(name, []).extend(f"{name}/{i}" for i in range(int(first), int(last or first) + 1))
    placement = Placement(members=tuple(MemberPlacement(node=n, devices=tuple(d)) for n, d in members.items()))
    width = max(len(d) for d in members.values())
    started = NOW - ran
    times = {"submitted_at": started, "started_at": started, "first_commit_at": started, "last_commit_at": NOW}
    return RunningGang(
        run_id=run_id,
        team=team,
        request=GangRequest(nodes=len(members), devices_per_node=width, **more),
        placement=placement,
        **{**times, **fields},
    )


def request(shape: str, **more: Any) -> GangRequest:
    nodes, _, devices = shape.rpartition("x")
    return GangRequest(nodes=int(nodes or 1), devices_per_node=int(devices), **more)


def cluster(
    nodes: Sequence[Node],
    running: Sequence[RunningGang] = (),
    teams: Sequence[Team] | None = None,
    **more: Any,
) -> Snapshot:
    known = [team("a", 1000), team("b", 1000)] if teams is None else teams
    return build_snapshot(nodes=nodes, running=running, teams={t.name: t for t in known}, pool="gpus", **more)


def decide(snapshot: Snapshot, *queue: QueuedGang, policy: Policy = POLICY, now: float = NOW) -> Plan:
    return plan(snapshot, queue, policy, now)


def admitted(result: Plan) -> dict[str, list[str]]:
    """Run id → nodes of its members."""
    return {admit.run_id: [member.node for member in admit.placement.members] for admit in result.admits}


def evicted(result: Plan) -> dict[str, list[str]]:
    """Run id of the preemptor → its victims, sorted."""
    return {a.run_id: sorted(v.run_id for v in a.victims) for a in result.admits if a.victims}


def why(result: Plan) -> Mapping[str, str]:
    """Run id → code of the reason it is held for."""
    return {hold.run_id: str(hold.reason.code) for hold in result.holds}


def texts(result: Plan) -> Mapping[str, str]:
    return {hold.run_id: hold.reason.text for hold in result.holds}


def carry_out(snapshot: Snapshot, result: Plan, queue: Sequence[QueuedGang], now: float = NOW) -> Snapshot:
    """The snapshot after the worker has carried the plan out: reservations made, victims told."""
    waiting_gangs = {gang.run_id: gang for gang in queue}
    updated: dict[str, RunningGang] = {}
    present = {gang.run_id: gang for gang in snapshot.gangs()}
    for admit in result.admits:
        gang = waiting_gangs[admit.run_id]
        for victim in admit.victims:
            updated[victim.run_id] = replace(
                updated.get(victim.run_id, present[victim.run_id]), evicting=True, evicting_for=admit.run_id
            )
        updated[admit.run_id] = RunningGang(
            run_id=gang.run_id,
            team=gang.team,
            request=gang.request,
            placement=admit.placement,
            submitted_at=gang.submitted_at,
            started_at=now,
            checkpoint_seconds=gang.checkpoint_seconds,
            restart_seconds=gang.restart_seconds,
            evictions=gang.evictions,
            promised=bool(admit.victims or admit.waits_for),
            conditional_until=result.conditional.get(gang.run_id),
            created_by=gang.created_by,
            tags=gang.tags,
        )
    for recall in result.recalls:
        updated[recall.run_id] = replace(present[recall.run_id], evicting=True, evicting_for=recall.for_run)
    return snapshot.apply(updated=list(updated.values()), shadows=result.shadows)


_QUEUED = {"submitted_at", "eligible_at", "evictions", "not_before", "parent_run_id", "checkpoint_seconds",
           "restart_seconds", "evicted_for", "attained_seconds", "waiting_since", "lifted", "created_by",
           "tags", "expected_seconds", "seconds_saved"}  # fmt: skip
_RUNNING = {"submitted_at", "started_at", "first_commit_at", "last_commit_at", "checkpoint_seconds", "restart_seconds",
            "has_on_evict", "evictions", "evicting", "evicting_for", "promised", "conditional_until",
            "attained_seconds", "moved_at", "created_by", "tags", "expected_seconds"}  # fmt: skip
