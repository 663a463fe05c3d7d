"""Random small clusters, running gangs and queues for the invariants of `plan()`."""

from typing import Any

from hypothesis import strategies as st

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import QueuedGang, RunningGang

NOW = 1_000_000.0
TEAMS = ("a", "b", "c")
GIB = 2**30


@st.composite
def nodes(draw: st.DrawFn, *, least: int = 1, most: int = 5) -> list[Node]:
    """Some declare processors and memory, so few that they may be what is lacking."""
    found = []
    declared = draw(st.booleans())
    for i in range(draw(st.integers(least, most))):
        name, gpus = f"n{i}", draw(st.sampled_from([1, 2, 4, 4]))
        rack = draw(st.sampled_from(["r0", "r1"]))
        model = draw(st.sampled_from(["H100", "H100", "H100", "A100"]))
        linked = draw(st.sampled_from(["node", "rack", "halves", "none"]))
        domain = {"node": name, "rack": rack + model, "none": ""}
        found.append(
            Node(
                name=name,
                topology=("z", rack),
                schedulable=draw(st.integers(0, 9)) > 0,
                cpus=draw(st.sampled_from([None, 4.0, 8.0, 8.0])) if declared else None,
                memory_bytes=draw(st.sampled_from([None, 4 * GIB, 8 * GIB])) if declared else None,
                devices=tuple(
                    Device(
                        uuid=f"{name}/{k}",
                        node=name,
                        index=k,
                        model=model,
                        memory_bytes=2**36,
                        nvlink_domain=domain.get(linked, f"{name}.{k // 2}"),
                        health=Health.FROZEN if draw(st.integers(0, 15)) == 15 else Health.HEALTHY,
                    )
                    for k in range(gpus)
                ),
            )
        )
    return found


@st.composite
def requests(draw: st.DrawFn, **fixed: Any) -> GangRequest:
    fields: dict[str, Any] = {
        "nodes": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "devices_per_node": draw(st.sampled_from([1, 1, 2, 2, 2, 3, 4])),
        "gpu_model": draw(st.sampled_from([None, None, None, None, "H100", "A100"])),
        "topology": draw(st.sampled_from([Topology.PREFERRED, *Topology])),
        "priority": draw(st.integers(0, 3)),
        "kind": draw(st.sampled_from([Kind.TRAINING, Kind.TRAINING, Kind.BATCH, Kind.INTERACTIVE, Kind.INFERENCE])),
        "preemptible": draw(st.integers(0, 5)) > 0,
        "max_runtime_seconds": draw(st.sampled_from([None, None, 60.0, 600.0, 7200.0])),
        "cpus": draw(st.sampled_from([None, None, 1.0, 2.0, 4.0])),
        "memory_bytes": draw(st.sampled_from([None, None, None, GIB, 4 * GIB])),
    }
    return GangRequest(**{**fields, **fixed})


@st.composite
def teams(draw: st.DrawFn) -> dict[str, Team]:
    return {
        name: Team(
            name=name,
            nominal_devices=draw(st.integers(0, 8)),
            borrow_devices=draw(st.sampled_from([None, None, None, 2, 6])),
            weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
        )
        for name in TEAMS
    }


@st.composite
def running(draw: st.DrawFn, cluster: list[Node], *, least: int = 0, most: int = 10) -> list[RunningGang]:
    """Gangs on disjoint devices, of whatever shape there was room for."""
    free = {node.name: [device.uuid for device in node.devices] for node in cluster}
    found = []
    for i in range(draw(st.integers(least, most))):
        width = draw(st.integers(1, 3))
        hosts = [name for name, uuids in free.items() if len(uuids) >= width][: draw(st.sampled_from([1, 1, 2]))]
        if not hosts:
            continue
        members = tuple(
            MemberPlacement(node=name, devices=tuple(free[name].pop(0) for _ in range(width))) for name in hosts
        )
        started = NOW - draw(st.sampled_from([10.0, 400.0, 5000.0]))
        committed = draw(st.sampled_from([None, 5.0, 300.0]))
        commit_at = None if committed is None else max(started, NOW - committed)
        found.append(
            RunningGang(
                run_id=f"r{i}",
                team=draw(st.sampled_from(TEAMS)),
                request=draw(requests(nodes=len(hosts), devices_per_node=width, gpu_model=None)),
                placement=Placement(members=members),
                submitted_at=started,
                started_at=started,
                first_commit_at=commit_at,
                last_commit_at=commit_at,
                has_on_evict=draw(st.booleans()),
                evictions=draw(st.integers(0, 2)),
                evicting=draw(st.integers(0, 7)) == 7,
            )
        )
    return found


@st.composite
def queues(draw: st.DrawFn, *, most: int = 10, **fixed: Any) -> list[QueuedGang]:
    found = []
    for i in range(draw(st.integers(1, most))):
        waited = draw(st.sampled_from([0.0, 1.0, 60.0, 60.0, 9000.0, 20_000.0, 30_000.0]))
        found.append(
            QueuedGang(
                run_id=f"q{i}",
                team=draw(st.sampled_from(TEAMS)),
                request=draw(requests(**fixed)),
                submitted_at=NOW - waited - draw(st.sampled_from([0.0, 5.0])),
                eligible_at=NOW - waited,
                not_before=draw(st.sampled_from([None] * 9 + [NOW + 30])),
            )
        )
    return found
