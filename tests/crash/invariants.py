"""What must hold after any failure and its recovery. Each check returns the sentences that are not true."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from dsec_blocks.cache import open_cache
from dsec_blocks.cache.settings import from_environment
from dsec_blocks.cache.store import sweep
from dsec_blocks.cache.store.check import check, verify
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from tests.crash.sightings import carrying, describe, processes_of
from tests.crash.world import BUNDLE, World

QUIET_SECONDS = 8.0
"""How long the last processes of a run may take to go after its gang has ended."""
REPEATS = {
    "ledger.take_lease": "the new worker leads",
    "ledger.beat": "it lives",
    "ledger.resign": "the old one said goodbye",
    "ledger.put_nodes": "nodes are written as found, whatever was there",
    "ledger.accrue": "time has passed, and is accounted for",
    "prefect.artifact.write": "the pool map is published once a term",
    "cluster.forkserver.spawn": "only the process: a fork-server may have died with the fault",
    "cluster.forkserver.kill": "only the process: a fork-server with other code is replaced",
    "forkserver.lock": "as above",
    "forkserver.record.write": "as above",
    "channel.socket.remove": "as above",
}
"""What an idle world may write at a second recovery, and why."""


def broken(world: World) -> list[str]:
    """Every invariant that does not hold in a world whose runs are over."""
    return [
        *_final_states(world),
        *_steps(world),
        *_ledger(world),
        *_reads(world),
        *_processes(world),
        *_cache(world),
        *(world.devices.violations if world.devices else ()),
    ]


def broken_by_a_second_recovery(world: World) -> list[str]:
    """Restart the worker on the idle world: it must find nothing to do."""
    states = {run_id: (world.history(run_id), world.gang(run_id)) for run_id in world.runs}
    world.stop_workers()
    world.is_idle, world.strike = True, None
    world.new_worker()
    world.wait_until_led(by=f"worker-{world.started - 1}")
    time.sleep(1.6)
    world.stop_workers()
    surplus = world.points_passed() - set(REPEATS)
    found = [f"the second recovery passed {point}" for point in sorted(surplus)]
    for run_id, before in states.items():
        if (world.history(run_id), world.gang(run_id)) != before:
            found.append(f"run {world.runs[run_id]['name']} changed in the second recovery")
    return found


def _final_states(world: World) -> Iterator[str]:
    for run_id, told in world.runs.items():
        state = world.state(run_id)
        if state[0] not in told["expects"]:
            yield f"run {told['name']} is {state}, expected {told['expects']}"
        history = world.history(run_id)
        kinds = world.http.get("flow_run_states/", params={"flow_run_id": run_id}).json()
        over = [s["type"] for s in kinds if s["type"] in ("COMPLETED", "FAILED", "CANCELLED")]
        if len(over) > told.get("ends", 1) or len(set(over)) > 1:
            yield f"run {told['name']} ended {len(over)} times: {history}"


def _steps(world: World) -> Iterator[str]:
    for run_id, told in world.runs.items():
        notes = world.notes(run_id)
        yield from (f"run {told['name']}: {text}" for text in overlaps(notes))
        if told["flow"] == "train" and world.state(run_id)[0] == "COMPLETED":
            for text in wrong_steps(notes, steps=told["parameters"]["steps"], may_repeat=world.may_repeat):
                yield f"run {told['name']}: {text}"


def overlaps(notes: list[dict[str, Any]]) -> Iterator[str]:
    """Once a later attempt runs, an earlier one must not."""
    latest = 0
    for note in notes:
        if note["attempt"] < latest:
            yield f"attempt {note['attempt']} still ran ({note['what']}) after attempt {latest} had begun"
            return
        latest = max(latest, note["attempt"])


def wrong_steps(notes: list[dict[str, Any]], *, steps: int, may_repeat: bool) -> Iterator[str]:
    """Each rank ran each step; within an attempt once and in order; again only where `may_repeat`."""
    by_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for note in notes:
        if note["what"] == "step":
            by_rank[note["rank"]].append((note["attempt"], note["step"]))
    if not by_rank:
        yield "no step was run"
    for rank, ran in sorted(by_rank.items()):
        counts = Counter(step for _, step in ran)
        missing = sorted(set(range(steps)) - set(counts))
        if missing:
            yield f"rank {rank} never ran steps {missing}"
        for (attempt, step), count in Counter(ran).items():
            if count > 1:
                yield f"rank {rank} ran step {step} {count} times in attempt {attempt}"
        twice = sorted(step for step, count in counts.items() if count > 1)
        if twice and not may_repeat:
            yield f"rank {rank} repeated steps {twice}, though its gang was never killed"


def _ledger(world: World) -> Iterator[str]:
    observed = asyncio.run(_observed(world))
    for violation in world.ledger.check(world.pool, observed=observed):
        yield f"{violation.rule}: {violation.text}"
    for holding in world.ledger.holders(world.pool):
        yield f"device {holding.device} is still reserved for {holding.run_id}"
    for run_id in world.runs:
        gang = world.gang(run_id)
        if gang is None or not gang.request.inputs or not gang.attempt:
            continue
        told = {order.attempt for order in world.ledger.prefetches_of(run_id)}
        if told != {gang.attempt}:
            yield f"run {gang.name} had attempt {gang.attempt} last, but nodes were told to fetch for {told or 'none'}"


def _reads(world: World) -> Iterator[str]:
    """Whoever trained had read the bundle, and every read of it was what its origin has."""
    wanted = {name: blake3(content).hexdigest() for name, content in BUNDLE.items()}
    for run_id, told in world.runs.items():
        notes = world.notes(run_id)
        read = [note for note in notes if note["what"] == "read"]
        for note in read:
            if note["digest"] != wanted.get(note["path"]):
                yield f"run {told['name']} read {note['path']} in attempt {note['attempt']}, and it was something else"
        whole = {(note["attempt"], note["path"]) for note in read}
        for attempt in {note["attempt"] for note in notes if note["what"] == "step"} if told["flow"] == "train" else ():
            if missing := sorted(name for name in wanted if (attempt, name) not in whole):
                yield f"run {told['name']} trained in attempt {attempt} without having read {missing}"


def _cache(world: World) -> Iterator[str]:
    """Once what the dead left is swept, `dsec cache check` has nothing to say, nor has a second sweep."""
    store = open_cache(from_environment(directory=world.home / "cache")).store
    sweep(store)
    for violation in check(store):
        yield f"cache {violation.rule} {violation.object}: {violation.text}"
    for view, path, is_right in verify(store.layout):
        if not is_right:
            yield f"cache view {view}: {path} is not what its manifest says"
    if not (again := sweep(store)).is_nothing:
        yield f"a second sweep of the cache found {again}"


async def _observed(world: World) -> list[tuple[str, int]]:
    """What the cluster still runs, by the adapter's own eyes, read without following anything."""
    cluster = LocalCluster(home=world.home, nodes=(), clock=SystemClock())
    try:
        alive = []
        for key, directory in cluster._directories():
            gone = directory.gone
            if directory.supervisor.exists() and not gone.exists():
                alive.append(tuple(key))
            elif gone.exists():
                json.loads(gone.read_text())  # whole
        return alive  # type: ignore[return-value]
    finally:
        await cluster.close()


def _processes(world: World) -> Iterator[str]:
    """Nothing but workers and the fork-server is left."""
    record = world.home / "fork-server.json"
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        spared = {process.pid for process in world.living}
        if record.exists():
            spared.add(json.loads(record.read_text())["process"]["pid"])
        left = [pid for pid in processes_of(world.home) if pid not in spared]
        left += carrying(set(world.runs))
        if not left:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    for pid in left:
        yield f"a process is left: {describe(pid)}"


__all__ = ["broken", "broken_by_a_second_recovery", "overlaps", "wrong_steps"]
