"""How long one scheduling cycle takes: 1,250 nodes × 8 GPUs, 95 % full, 10,000 waiting in 2,000 kinds, 40 teams.

    python -m benchmarks.cycle [--quick]

`cold_ms`: read the ledger of the pool at rest and of ten arrivals, build the snapshot, plan. `steady_ms`: one gang
ended and ten arrived, one of which may evict; enter that and what the last plan started, and plan again with a reason,
place and rank for everybody.
`admissions_per_s`: 10,000 gangs of one GPU, in 64 shapes, into the empty cluster. `growth_exponent_nodes`: slope of
log(steady) over log(nodes) with the line and the changes kept, over the last three sizes.
Medians of wall time; all of it is one thread, so the same in processor time (`…_cpu…`, and the slope, made of it) tells
what a busy machine adds.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from benchmarks.cycle_world import NOW, SEED, World, arrival, build_world, one_gpu_shapes, urgent
from benchmarks.report import publish
from dsec_blocks.ledger import AdmissionRequest, Ledger
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
        ledger = filled_ledger(pool, world, [*pool.queue, *arrivals], Path(folder) / "ledger.db")
        for _ in range(times):
            request_of_text.cache_clear()  # a new leader has read nothing yet
            began, cpu = time.perf_counter(), time.thread_time()
            present = foresight.present(ledger, "gpus", now=NOW)
            read = time.thread_time()
            present.plan()
            whole.append((time.perf_counter() - began) * 1000)
            used.append((time.thread_time() - cpu) * 1000)
            planned.append((time.thread_time() - read) * 1000)
        ledger.close()
    return whole, used, planned


class Standing(Clock):
    """It is always `NOW`."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return NOW

    def monotonic(self) -> float:
        """Seconds."""
        return NOW


def filled_ledger(pool: Pool, world: World, queue: Sequence[QueuedGang], path: Path) -> Ledger:
    """A ledger in which the pool's gangs run, and these wait."""
    ledger = Ledger.open(f"sqlite:///{path}", clock=Standing())
    fence = ledger.take_lease("gpus", "benchmark", seen=None)
    assert fence is not None
    ledger.put_nodes(fence, world.nodes)
    for team in world.teams.values():
        ledger.put_team("gpus", team)
    running = list(pool.snapshot.gangs())
    ledger.enqueue(fence, [_gang(gang, gang.submitted_at) for gang in running])
    ledger.enqueue(fence, [_gang(gang, gang.eligible_at) for gang in queue])
    ledger.put_shadows(fence, [{**asdict(shadow), "devices": list(shadow.devices)} for shadow in pool.plan.shadows])
    places = [AdmissionRequest(run_id=g.run_id, placement=g.placement, expires_at=NOW + 60) for g in running]
    assert not any(isinstance(answer, ReservationConflict) for answer in ledger.admit_all(fence, places))
    assert not any(ledger.claimed_all(fence, [(gang.run_id, 1, None) for gang in running]))
    assert all(ledger.started_all(fence, [(gang.run_id, 1, gang.started_at) for gang in running]))
    return ledger


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


def admissions_per_s(*, nodes: int, gangs: int, policy: Policy) -> tuple[float, float]:
    """One-GPU gangs of 64 shapes that wait for an empty cluster, and start in one cycle; by wall and processor time."""
    dice, shapes = random.Random(SEED), one_gpu_shapes()
    world = build_world(nodes=nodes, waiting=0, full=0.0)
    teams = {name: replace(team, borrow_devices=None) for name, team in world.teams.items()}
    names = list(teams)
    queue = [arrival(dice, f"one-{i:05}", names[i % 40], shapes[i % len(shapes)]) for i in range(gangs)]
    snapshot = build_snapshot(nodes=world.nodes, running=(), teams=teams, pool="gpus")
    began, used = time.perf_counter(), time.thread_time()
    found = plan(snapshot, queue, policy, NOW)
    assert len(found.admits) == gangs
    return gangs / (time.perf_counter() - began), gangs / (time.thread_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure plan() and write benchmarks/results/cycle.json.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the size, for a look")
    scale = 8 if parser.parse_args().quick else 1
    nodes, waiting, policy = 1250 // scale, 10_000 // scale, Policy()
    rows: list[dict[str, object]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("cycle", total=8)
        world = build_world(nodes=nodes, waiting=waiting)
        progress.advance(task)
        pool = at_rest(world, policy, random.Random(SEED))
        cold, cold_cpu, cold_plan = cold_ms(pool, world, 5)
        progress.advance(task)
        steady, steady_cpu = steady_ms(world, policy, cycles=30, pool=pool)
        progress.advance(task)
        rates = [admissions_per_s(nodes=nodes, gangs=nodes * 8, policy=policy) for _ in range(3)]
        progress.advance(task)
        sizes, times = [], []
        for size in (nodes // 2, nodes, nodes * 2, nodes * 4):
            sizes.append(size)
            times.append(statistics.median(steady_ms(build_world(nodes=size, waiting=waiting), policy, cycles=11)[1]))
            progress.advance(task)
            rows.append({"nodes": size, "waiting": waiting, "steady_cpu_ms": round(times[-1], 1)})
    publish(
        "cycle",
        {
            "cold_ms": statistics.median(cold),
            "cold_cpu_ms": statistics.median(cold_cpu),
            "cold_plan_cpu_ms": statistics.median(cold_plan),
            "steady_ms": statistics.median(steady),
            "steady_max_ms": max(steady),
            "steady_cpu_ms": statistics.median(steady_cpu),
            "admissions_per_s": statistics.median(wall for wall, _ in rates),
            "admissions_per_cpu_s": statistics.median(cpu for _, cpu in rates),
            "growth_exponent_nodes": float(np.polyfit(np.log(sizes[1:]), np.log(times[1:]), 1)[0]),
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


if __name__ == "__main__":
    main()
