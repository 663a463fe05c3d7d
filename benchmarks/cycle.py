"""How long one scheduling cycle takes: 1,250 nodes × 8 GPUs, a full cluster and 10,000 waiting gangs.

    python -m benchmarks.cycle [--quick]

`cold_ms`: build the snapshot and plan. `steady_ms`: one gang ended, ten arrived, one of which may evict; apply the
change and plan again with a reason, place and rank for everybody. `admissions_per_s`: 10,000 gangs of mixed shapes
into the empty cluster. `growth_exponent_nodes`: slope of log(steady) over log(nodes) with the queue kept.
Medians of wall time; all of it is one thread, so `steady_cpu_ms` (and the slope, made of it) tells what a busy machine
adds.
"""

import argparse
import random
import statistics
import time
from dataclasses import dataclass

import numpy as np
from rich.progress import Progress

from benchmarks.report import publish
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind, Topology
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan

NOW = 1_800_000_000.0
SEED = 7
TEAMS = 20
SHAPES = ((1, 1), (1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8))
LIMITS = (None, None, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0)


@dataclass(frozen=True)
class World:
    """A cluster, what runs on it, and who waits."""

    nodes: tuple[Node, ...]
    running: tuple[RunningGang, ...]
    queue: tuple[QueuedGang, ...]
    teams: dict[str, Team]

    def snapshot(self) -> Snapshot:
        """Built from nothing."""
        return build_snapshot(nodes=self.nodes, running=self.running, teams=self.teams, pool="gpus")


def build_world(*, nodes: int, waiting: int, busy: float = 1.0, seed: int = SEED) -> World:
    """Racks of 16 nodes; three quarters H100 of one domain per node, the rest A100."""
    dice = random.Random(seed)
    cluster = tuple(
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
    owned = nodes * 8 // TEAMS
    teams = {f"team-{t:02}": Team(name=f"team-{t:02}", nominal_devices=owned) for t in range(TEAMS)}
    running: list[RunningGang] = []
    index = 0
    while index < nodes * busy:
        width, per = dice.choice(SHAPES)
        if index + width > nodes:
            width, per = 1, 8
        for part in range(8 // per if width == 1 else 1):
            started = NOW - dice.uniform(10, 6 * 3600)
            limit = dice.choice(LIMITS)
            running.append(
                RunningGang(
                    run_id=f"run-{len(running):05}",
                    team=dice.choice(list(teams)),
                    request=GangRequest(
                        nodes=width,
                        devices_per_node=per,
                        priority=dice.choice((0, 10, 50)),
                        kind=dice.choice((Kind.TRAINING, Kind.TRAINING, Kind.BATCH, Kind.INFERENCE)),
                        max_runtime_seconds=None if limit is None else limit + NOW - started,
                    ),
                    placement=Placement(
                        members=tuple(
                            MemberPlacement(
                                node=cluster[index + n].name,
                                devices=tuple(
                                    d.uuid for d in cluster[index + n].devices[part * per : (part + 1) * per]
                                ),
                            )
                            for n in range(width)
                        )
                    ),
                    submitted_at=started,
                    started_at=started,
                    first_commit_at=started + 5,
                    last_commit_at=NOW - dice.uniform(0, 600),
                )
            )
        index += width
    queue = tuple(_gang(dice, f"wait-{i:05}", list(teams)) for i in range(waiting))
    return World(nodes=cluster, running=tuple(running), queue=queue, teams=teams)


def _gang(dice: random.Random, run_id: str, teams: list[str], **fixed: object) -> QueuedGang:
    width, per = dice.choice(SHAPES)
    submitted = NOW - dice.uniform(60, 3 * 3600)
    fields: dict[str, object] = {
        "nodes": width,
        "devices_per_node": per,
        "gpu_model": dice.choice((None, "H100", "H100", "A100")),
        "topology": dice.choice((Topology.PREFERRED, Topology.PREFERRED, Topology.NODE_DOMAIN)),
        "max_runtime_seconds": dice.choice(LIMITS),
    }
    return QueuedGang(
        run_id=run_id,
        team=dice.choice(teams),
        request=GangRequest(**{**fields, **fixed}),  # type: ignore[arg-type]
        submitted_at=submitted,
        eligible_at=submitted,
    )


def carry_out(
    snapshot: Snapshot, queue: list[QueuedGang], result: Plan, now: float
) -> tuple[Snapshot, list[QueuedGang]]:
    """What the worker would make of the plan, victims gone at once: the next snapshot, and who still waits."""
    waiting = {gang.run_id: gang for gang in queue}
    started = [
        RunningGang(
            run_id=admit.run_id,
            team=waiting[admit.run_id].team,
            request=waiting[admit.run_id].request,
            placement=admit.placement,
            submitted_at=waiting[admit.run_id].submitted_at,
            started_at=now,
            conditional_until=result.conditional.get(admit.run_id),
        )
        for admit in result.admits
    ]
    gone = [victim.run_id for admit in result.admits for victim in admit.victims]
    admitted = {admit.run_id for admit in result.admits}
    return (
        snapshot.apply(finished=gone, updated=started, shadows=result.shadows),
        [gang for gang in queue if gang.run_id not in admitted],
    )


def steady_ms(world: World, policy: Policy, *, cycles: int, seed: int = SEED) -> tuple[list[float], list[float]]:
    """One gang ends, ten arrive (one may evict), again and again on a snapshot that is kept current.

    The cluster is brought to rest first, so that a cycle decides about what is new and not about a backlog.
    Returns wall and processor milliseconds of every cycle.
    """
    dice = random.Random(seed)
    snapshot, queue = world.snapshot(), list(world.queue)
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(30):
        result = plan(snapshot, queue, policy, NOW)
        snapshot, queue = carry_out(snapshot, queue, result, NOW)
        if not result.admits:
            break
    for cycle in range(cycles):
        now = NOW + cycle
        ended = dice.choice(sorted(snapshot.slots))
        arrivals = [_gang(dice, f"new-{cycle:03}-{i}", list(world.teams)) for i in range(9)]
        arrivals.append(_gang(dice, f"new-{cycle:03}-9", list(world.teams), priority=90))
        queue = [*queue, *arrivals]
        began, used = time.perf_counter(), time.thread_time()
        snapshot = snapshot.apply(finished=[ended])
        result = plan(snapshot, queue, policy, now)
        wall.append((time.perf_counter() - began) * 1000)
        cpu.append((time.thread_time() - used) * 1000)
        assert len(result.holds) + len(result.admits) == len(queue)
        snapshot, queue = carry_out(snapshot, queue, result, now)
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure plan() and write benchmarks/results/cycle.json.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the size, for a look")
    scale = 8 if parser.parse_args().quick else 1
    nodes, waiting, policy = 1250 // scale, 10_000 // scale, Policy()
    rows: list[dict[str, object]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("cycle", total=6)
        world = build_world(nodes=nodes, waiting=waiting)
        progress.advance(task)
        cold = []
        for _ in range(3):
            began = time.perf_counter()
            result = plan(world.snapshot(), world.queue, policy, NOW)
            cold.append((time.perf_counter() - began) * 1000)
        progress.advance(task)
        steady, steady_cpu = steady_ms(world, policy, cycles=20)
        progress.advance(task)
        empty = build_world(nodes=nodes, waiting=waiting, busy=0.0)
        snapshot = empty.snapshot()
        began = time.perf_counter()
        filled = plan(snapshot, empty.queue, policy, NOW)
        fill = time.perf_counter() - began
        progress.advance(task)
        sizes, times = [], []
        for part in (8, 4, 2, 1):
            sized = build_world(nodes=nodes // part, waiting=waiting)
            sizes.append(nodes // part)
            times.append(statistics.median(steady_ms(sized, policy, cycles=9)[1]))
            rows.append({"nodes": nodes // part, "waiting": waiting, "steady_cpu_ms": round(times[-1], 1)})
            progress.advance(task, 0.5)
    slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    publish(
        "cycle",
        {
            "cold_ms": statistics.median(cold),
            "steady_ms": statistics.median(steady),
            "steady_max_ms": max(steady),
            "steady_cpu_ms": statistics.median(steady_cpu),
            "admissions_per_s": len(filled.admits) / fill,
            "growth_exponent_nodes": slope,
        },
        seeds=[SEED],
        aims={"steady_ms": "< 200", "growth_exponent_nodes": "≤ 1"},
        context={
            "nodes": nodes,
            "waiting": waiting,
            "running": len(world.running),
            "admitted_cold": len(result.admits),
            "preemptions_cold": sum(bool(admit.victims) for admit in result.admits),
            "admitted_into_empty": len(filled.admits),
        },
        rows=rows,
    )


if __name__ == "__main__":
    main()
