"""How long one scheduling cycle takes: 1,250 nodes × 8 GPUs, 95 % full, 10,000 waiting in 2,000 kinds, 40 teams.

    python -m benchmarks.cycle [--quick]

`cold_ms`: read the ledger of the pool at rest and of ten arrivals, build the snapshot, plan. `steady_ms`: one gang
ended and ten arrived, one of which may evict; enter that and what the last plan started, and plan again with a reason,
place and rank for everybody.
`live_…`: the planning step of a live worker on a real ledger, in the same steady state (`cycle_live`).
`admissions_per_s`: 10,000 gangs of one GPU, in 64 shapes (or 1,000), into the empty cluster. `growth_exponent_…`: slope
of log(steady) over log(nodes), and over log(waiting), with the other and the changes kept, over the last three sizes;
each size is measured in a process of its own, whose peak is its memory.
Medians of wall time; all of it is one thread, so the same in processor time (`…_cpu…`, and the slope, made of it) tells
what a busy machine adds.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from benchmarks.cycle_live import Ticking, live_ms
from benchmarks.cycle_world import NOW, SEED, World, arrival, build_world, one_gpu_shapes, urgent
from benchmarks.loglog import log_log_svg
from benchmarks.report import RESULTS, publish
from benchmarks.servers import postgres
from dsec_blocks.ledger import AdmissionRequest, Fence, Ledger
from dsec_blocks.ledger.rows import request_of_text
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import Gang, GangState
from dsec_deployments import foresight
from dsec_workers.scheduling import Memory, Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan

ROUNDS = 60
"""Cycles in which a cluster comes to rest, at most."""


@dataclass
class Pool:
    """A cluster under `plan()` whose victims are gone at once; what was decided is entered in the next cycle."""

    snapshot: Snapshot
    queue: list[QueuedGang]
    policy: Policy
    plan: Plan = field(default_factory=Plan)
    memory: Memory = field(default_factory=Memory)
    _gone: tuple[str, ...] = ()
    _started: tuple[RunningGang, ...] = ()

    def cycle(self, now: float, ended: Sequence[str] = ()) -> None:
        """Enter the changes and plan: this is what is measured."""
        self.snapshot = self.snapshot.apply(
            finished=[*ended, *self._gone], updated=self._started, shadows=self.plan.shadows
        )
        self.plan = plan(self.snapshot, self.queue, self.policy, now, memory=self.memory)
        held = sum(1 for hold in self.plan.holds if hold.reason.text)
        assert held + len(self.plan.admits) == len(self.queue)

    def carry_out(self, now: float) -> None:
        """What the worker would make of the plan."""
        waiting = {gang.run_id: gang for gang in self.queue}
        self._started = tuple(
            RunningGang(
                run_id=admit.run_id,
                team=waiting[admit.run_id].team,
                request=waiting[admit.run_id].request,
                placement=admit.placement,
                submitted_at=waiting[admit.run_id].submitted_at,
                started_at=now,
                conditional_until=self.plan.conditional.get(admit.run_id),
            )
            for admit in self.plan.admits
        )
        self._gone = tuple(victim.run_id for admit in self.plan.admits for victim in admit.victims)
        admitted = {admit.run_id for admit in self.plan.admits}
        self.queue = [gang for gang in self.queue if gang.run_id not in admitted]

    @property
    def full(self) -> float:
        """Part of the devices that are held."""
        return float((self.snapshot.holder >= 0).mean())


def at_rest(world: World, policy: Policy, dice: random.Random) -> Pool:
    """The world once nobody who waits can start, with the line as long as it was at first."""
    pool, wanted = Pool(world.snapshot(), list(world.queue), policy), len(world.queue)
    for number in range(ROUNDS):
        pool.cycle(NOW)
        pool.carry_out(NOW)
        if pool.plan.admits:
            continue
        if len(pool.queue) == wanted:
            break
        lacking = Counter({index: wanted // len(world.kinds) for index in range(len(world.kinds))})
        number_of = {(team, id(request)): index for index, (team, request) in enumerate(world.kinds)}
        lacking.subtract(number_of[gang.team, id(gang.request)] for gang in pool.queue)
        more = [kind for kind, times in lacking.items() for _ in range(times)][: wanted - len(pool.queue)]
        pool.queue += [arrival(dice, f"more-{number:02}-{i:05}", *world.kinds[kind]) for i, kind in enumerate(more)]
    return pool


def steady_ms(
    world: World, policy: Policy, *, cycles: int, pool: Pool | None = None, seed: int = SEED
) -> tuple[list[float], list[float]]:
    """Wall and processor milliseconds of every cycle of a pool at rest."""
    dice = random.Random(seed)
    pool = pool or at_rest(world, policy, dice)
    wall: list[float] = []
    cpu: list[float] = []
    for cycle in range(cycles):
        now = NOW + cycle + 1
        ended = dice.choice(sorted(pool.snapshot.slots))
        pool.queue += [arrival(dice, f"new-{cycle:03}-{i}", *dice.choice(world.kinds), NOW - now) for i in range(9)]
        pool.queue.append(urgent(dice, f"new-{cycle:03}-9", world, now))
        began, used = time.perf_counter(), time.thread_time()
        pool.cycle(now, [ended])
        wall.append((time.perf_counter() - began) * 1000)
        cpu.append((time.thread_time() - used) * 1000)
        pool.carry_out(now)
    return wall, cpu


def cold_ms(pool: Pool, world: World, times: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds to read a ledger that holds the pool and plan; of the processor; and of that to plan, each time.

    It is what a new leader does first: the pool is at rest, but for ten arrivals of which one may evict.
    """
    dice = random.Random(SEED)
    arrivals = [arrival(dice, f"cold-{i}", *dice.choice(world.kinds), 0.0) for i in range(9)]
    arrivals.append(urgent(dice, "cold-9", world, NOW))
    whole, used, planned = [], [], []
    with TemporaryDirectory() as folder:
        ledger, _ = filled_ledger(pool, world, [*pool.queue, *arrivals], f"sqlite:///{folder}/ledger.db")
        for _ in range(times):
            request_of_text.cache_clear()  # a new leader has read nothing yet
            present = None  # nor has it anything to put away
            began, cpu = time.perf_counter(), time.thread_time()
            present = foresight.present(ledger, "gpus", now=NOW)
            read = time.thread_time()
            present.plan()
            whole.append((time.perf_counter() - began) * 1000)
            used.append((time.thread_time() - cpu) * 1000)
            planned.append((time.thread_time() - read) * 1000)
        ledger.close()
    return whole, used, planned


def filled_ledger(
    pool: Pool, world: World, queue: Sequence[QueuedGang], url: str, clock: Clock | None = None
) -> tuple[Ledger, Fence]:
    """A ledger in which the pool's gangs run, and these wait."""
    ledger = Ledger.open(url, clock=clock or Ticking())
    fence = ledger.take_lease("gpus", "benchmark", seen=None)
    assert fence is not None
    ledger.put_nodes(fence, world.nodes)
    for team in world.teams.values():
        ledger.put_team("gpus", team)
    running = list(pool.snapshot.gangs())
    ledger.enqueue(fence, [_gang(gang, gang.submitted_at) for gang in running])
    ledger.enqueue(fence, [_gang(gang, gang.eligible_at) for gang in queue])
    ledger.put_shadows(fence, [shadow.to_json() for shadow in pool.plan.shadows])
    places = [AdmissionRequest(run_id=g.run_id, placement=g.placement, expires_at=NOW + 60) for g in running]
    assert not any(isinstance(answer, ReservationConflict) for answer in ledger.admit_all(fence, places))
    assert not any(ledger.claimed_all(fence, [(gang.run_id, 1, None) for gang in running]))
    assert all(ledger.started_all(fence, [(gang.run_id, 1, gang.started_at) for gang in running]))
    return ledger, fence


def _gang(gang: RunningGang | QueuedGang, eligible_at: float) -> Gang:
    return Gang(
        run_id=gang.run_id,
        name=gang.run_id,
        pool="gpus",
        team=gang.team,
        request=gang.request,
        state=GangState.WAITING,
        submitted_at=gang.submitted_at,
        eligible_at=eligible_at,
    )


def admissions_per_s(*, nodes: int, gangs: int, policy: Policy, shapes: int = 64) -> tuple[float, float]:
    """One-GPU gangs of so many shapes that wait for an empty cluster, and start in one cycle; by wall and processor."""
    dice, kinds = random.Random(SEED), one_gpu_shapes(shapes)
    world = build_world(nodes=nodes, waiting=0, full=0.0)
    teams = {name: replace(team, borrow_devices=None) for name, team in world.teams.items()}
    names = list(teams)
    queue = [arrival(dice, f"one-{i:05}", names[i % 40], kinds[i % len(kinds)]) for i in range(gangs)]
    snapshot = build_snapshot(nodes=world.nodes, running=(), teams=teams, pool="gpus")
    began, used = time.perf_counter(), time.thread_time()
    found = plan(snapshot, queue, policy, NOW)
    took, used = time.perf_counter() - began, time.thread_time() - used
    started = len(found.admits)
    assert started > 0.99 * gangs, "all but the last few, whose GPU model others have taken by then"
    return started / took, started / used


def live(pool: Pool, world: World, policy: Policy, url: str, steps: int) -> tuple[float, float, float]:
    """Milliseconds of a live worker's planning step: the first of a term, then medians of wall and processor time."""
    clock = Ticking()
    ledger, fence = filled_ledger(pool, world, pool.queue, url, clock)
    try:
        first, wall, cpu = live_ms(ledger, fence, clock, world, policy, steps=steps)
    finally:
        ledger.close()
    return first, statistics.median(wall), statistics.median(cpu)


def measure_size(nodes: int, waiting: int) -> dict[str, float]:
    """One size, in this process, whose memory is then that of the size (with the ledger's cache and its readers)."""
    policy, world = Policy(), build_world(nodes=nodes, waiting=waiting)
    pool = at_rest(world, policy, random.Random(SEED))
    cold, _, _ = cold_ms(pool, world, 3)
    wall, cpu = steady_ms(world, policy, cycles=11, pool=pool)
    return {
        "nodes": nodes,
        "waiting": waiting,
        "steady_ms": round(statistics.median(wall), 1),
        "steady_cpu_ms": round(statistics.median(cpu), 1),
        "cold_ms": round(statistics.median(cold), 1),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def measured_apart(nodes: int, waiting: int) -> dict[str, float]:
    """`measure_size` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cycle", "--size", str(nodes), str(waiting)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure plan() and write benchmarks/results/cycle.json.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the size, for a look")
    parser.add_argument("--size", nargs=2, type=int, metavar=("NODES", "WAITING"), help="print one size as JSON")
    options = parser.parse_args()
    if options.size:
        print(json.dumps(measure_size(*options.size)))
        return
    scale = 8 if options.quick else 1
    nodes, waiting, policy = 1250 // scale, 10_000 // scale, Policy()
    by_nodes = [nodes // 10, nodes // 5, nodes // 2, nodes, nodes * 2, nodes * 4]
    by_queue = [waiting // 100, waiting // 10, waiting, waiting * 5]
    rows: list[dict[str, float]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("cycle", total=6 + len(by_nodes) + len(by_queue) - 1)
        world = build_world(nodes=nodes, waiting=waiting)
        progress.advance(task)
        pool = at_rest(world, policy, random.Random(SEED))
        cold, cold_cpu, cold_plan = cold_ms(pool, world, 5)
        progress.advance(task)
        with TemporaryDirectory(prefix="dsec-bench-") as folder:
            first, live_wall, live_cpu = live(pool, world, policy, f"sqlite:///{folder}/ledger.db", 30)
            progress.advance(task)
            with postgres(Path(folder) / "postgres") as url:
                _, postgres_wall, postgres_cpu = live(pool, world, policy, url, 30)
            progress.advance(task)
        steady, steady_cpu = steady_ms(world, policy, cycles=30, pool=pool)
        progress.advance(task)
        rates = [admissions_per_s(nodes=nodes, gangs=nodes * 8, policy=policy) for _ in range(3)]
        many = [admissions_per_s(nodes=nodes, gangs=nodes * 8, policy=policy, shapes=1000) for _ in range(3)]
        progress.advance(task)
        for size, line in [*((n, waiting) for n in by_nodes), *((nodes, n) for n in by_queue if n != waiting)]:
            rows.append(measured_apart(size, line))
            progress.advance(task)
    along = [row for row in rows if row["waiting"] == waiting]
    across = sorted((row for row in rows if row["nodes"] == nodes), key=lambda row: row["waiting"])
    _plot("nodes", waiting, along)
    _plot("waiting", nodes, across)
    exponents = {f"growth_exponent_{name}": _slope(name, some[-3:])
                 for name, some in (("nodes", along), ("waiting", across))}  # fmt: skip
    publish(
        "cycle",
        {
            "cold_ms": statistics.median(cold),
            "cold_cpu_ms": statistics.median(cold_cpu),
            "cold_plan_cpu_ms": statistics.median(cold_plan),
            "steady_ms": statistics.median(steady),
            "steady_max_ms": max(steady),
            "steady_cpu_ms": statistics.median(steady_cpu),
            "live_steady_ms": live_wall,
            "live_steady_cpu_ms": live_cpu,
            "live_first_ms": first,
            "live_postgres_steady_ms": postgres_wall,
            "live_postgres_steady_cpu_ms": postgres_cpu,
            "admissions_per_s": statistics.median(wall for wall, _ in rates),
            "admissions_per_cpu_s": statistics.median(cpu for _, cpu in rates),
            "admissions_per_s_1000_shapes": statistics.median(wall for wall, _ in many),
            **exponents,
        },
        seeds=[SEED],
        aims={
            "cold_ms": "≤ 500",
            "steady_ms": "≤ 50",
            "admissions_per_s": "≥ 3,000",
            "growth_exponent_nodes": "≤ 1.05",
        },
        context={
            "nodes": nodes,
            "waiting": len(pool.queue),
            "kinds": len(world.kinds),
            "teams": len(world.teams),
            "running": len(world.running),
            "full": round(pool.full, 4),
            "reasons": dict(Counter(str(hold.reason.code) for hold in pool.plan.holds)),
        },
        rows=rows,
    )


def _slope(name: str, rows: Sequence[dict[str, float]]) -> float:
    sizes, times = [row[name] for row in rows], [row["steady_cpu_ms"] for row in rows]
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _plot(name: str, other: int, rows: Sequence[dict[str, float]]) -> None:
    title = f"One cycle, {other:,} {'waiting' if name == 'nodes' else 'nodes'}"
    figures = ("cold_ms", "steady_ms", "memory_mib")
    plot = log_log_svg(title, name, "ms, MiB", {each: [(row[name], row[each]) for row in rows] for each in figures})
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"cycle-{name}.svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
