"""Admission: a hundred gangs of 4 to 8 GPUs created within ten seconds for 128 GPUs (articles.md A16).

    python -m benchmarks.admit

Real Prefect flow runs, PostgreSQL for Prefect and for the ledger. What can be placed at once is the set of gangs that
are admitted before the first one ends; for these, run created → Pending by the server's timestamps, and where the time
went. By moments: until our admission was decided, and from there to the Pending state. By parts: in `plan()`, in the
ledger (both by the decision log), and the rest, which is Prefect's API (its event, our reads, its Pending). An observer
reads the ledger all the while and counts partial gangs.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.states import Cancelling
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.prefect_runs import read_runs, summary, until
from benchmarks.report import publish
from benchmarks.servers import prefect_server, speaking_to
from benchmarks.workers import OURS, deploy, worker
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger

SEED = 11
POOL = "admit"
NODES, DEVICES_PER_NODE = 16, 8
HOLD_S = 25.0
CREATE_WITHIN_S = 10.0
PATIENCE_S = 180.0
AIMS = {"admit_p50_s": "≤ 1", "admit_p99_s": "≤ 2", "partial_gangs": "0"}


async def create(client: Any, deployment: UUID, sizes: list[int]) -> list[UUID]:
    """One run a size, evenly over the ten seconds."""
    started = time.monotonic()

    async def one(index: int, size: int) -> UUID:
        await asyncio.sleep(max(0.0, started + index * CREATE_WITHIN_S / len(sizes) - time.monotonic()))
        variables = {"devices_per_node": size}
        run = await client.create_flow_run_from_deployment(deployment, job_variables=variables)
        return UUID(str(run.id))

    return list(await asyncio.gather(*(one(index, size) for index, size in enumerate(sizes))))


async def count_partial(ledger: Ledger, stop: asyncio.Event) -> int:
    """Gangs seen holding some but not all of their devices, by an observer of the ledger's reservations."""
    partial = 0
    while not stop.is_set():
        violations = await asyncio.to_thread(ledger.check, POOL)
        partial += len(violations)
        await asyncio.sleep(0.25)
    return partial


async def measure(gangs: int, progress: Progress) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The whole test; returns the figures, and a row per part of the time."""
    choose = random.Random(SEED)
    sizes = [choose.randint(4, 8) for _ in range(gangs)]
    with (
        prefect_server("postgres") as server,
        speaking_to(server),
        tempfile.TemporaryDirectory(prefix="dsec-admit-", ignore_cleanup_errors=True) as scratch,
    ):
        here = Path(__file__).parent.parent
        variables = {"env": {"PYTHONPATH": str(here)}, "preemptible": True}
        deployment = await deploy(OURS, POOL, here, "benchmarks/flows.py:hold", variables)
        async with get_client() as client:
            from prefect.client.schemas.actions import DeploymentUpdate

            await client.update_deployment(deployment, DeploymentUpdate(parameters={"seconds": HOLD_S}))
            with worker(server, OURS, POOL, home=Path(scratch) / "home", slots=DEVICES_PER_NODE, nodes=NODES):
                ledger = Ledger.open(server.ledger_url(POOL), clock=SystemClock())
                await until("the worker has told its nodes", lambda: ledger.nodes(POOL))
                stop = asyncio.Event()
                observer = asyncio.create_task(count_partial(ledger, stop))
                ids = await create(client, deployment, sizes)
                histories = await _until_first_wave_is_pending(client, ids, progress)
                for run in await read_runs(client, ids):
                    if run.state is not None and not run.state.is_final():
                        await client.set_flow_run_state(run.id, Cancelling(), force=True)
                stop.set()
                partial = await observer
                admissions = {
                    decision.run_id: decision
                    for decision in ledger.decisions(POOL, limit=100_000)
                    if decision.outcome == "admit"
                }
                ledger.close()
    first_end = min((h["ended"] for h in histories.values() if h["ended"]), default=float("inf"))
    first_wave = {i: h for i, h in histories.items() if h["pending"] and h["pending"] < first_end}
    waits = [h["pending"] - h["created"] for h in first_wave.values()]
    known = {i: (admissions[i], h) for i, h in first_wave.items() if i in admissions}
    decided = [admission.at - h["created"] for admission, h in known.values()]
    claimed = [h["pending"] - admission.at for admission, h in known.values()]
    plan = [admission.detail["seconds"]["plan"] for admission, _ in known.values()]
    in_ledger = [admission.detail["seconds"]["ledger"] for admission, _ in known.values()]
    prefect = [
        h["pending"] - h["created"] - sum(admission.detail["seconds"].values()) for admission, h in known.values()
    ]
    devices = sum(sizes[ids.index(UUID(i))] for i in first_wave)
    figures = {
        "admit_p50_s": summary(waits)["p50"],
        "admit_p99_s": summary(waits)["p99"],
        "admit_max_s": summary(waits)["max"],
        "partial_gangs": float(partial),
        "placed_at_once": float(len(first_wave)),
        "devices_in_use": float(devices),
        "decide_p50_s": summary(decided)["p50"],
        "claim_p50_s": summary(claimed)["p50"],
        "prefect_api_p50_s": summary(prefect)["p50"],
        "prefect_api_p99_s": summary(prefect)["p99"],
        "plan_p50_s": summary(plan)["p50"],
        "plan_p99_s": summary(plan)["p99"],
        "ledger_p50_s": summary(in_ledger)["p50"],
        "ledger_p99_s": summary(in_ledger)["p99"],
    }
    rows = [
        {"part": "created → admitted (events, reads, plan, ledger)", **summary(decided)},
        {"part": "admitted → Pending (Prefect)", **summary(claimed)},
        {"part": "of all that: Prefect's API", **summary(prefect)},
        {"part": "of all that: plan()", **summary(plan)},
        {"part": "of all that: the ledger", **summary(in_ledger)},
        {"part": "created → Pending", **summary(waits)},
    ]
    return figures, rows


async def _until_first_wave_is_pending(client: Any, ids: list[UUID], progress: Progress) -> dict[str, dict[str, Any]]:
    """Created, Pending and end times by run, once the devices are full or runs begin to end."""
    task = progress.add_task("gangs pending", total=NODES * DEVICES_PER_NODE // 6)
    deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE_S)
    while datetime.now(UTC) < deadline:
        runs = await read_runs(client, ids)
        progress.update(task, completed=sum(run.state is not None and not run.state.is_scheduled() for run in runs))
        if any(run.state is not None and run.state.is_final() for run in runs):
            break
        await asyncio.sleep(1.0)
    histories: dict[str, dict[str, Any]] = {}
    for run in runs:
        states = await client.read_flow_run_states(run.id)
        pending = [s.timestamp.timestamp() for s in states if s.name == "Pending"]
        ended = [s.timestamp.timestamp() for s in states if s.is_final()]
        histories[str(run.id)] = {
            "created": run.created.timestamp(),
            "pending": min(pending, default=None),
            "ended": min(ended, default=None),
        }
    return histories


def main() -> None:
    """Parse the arguments, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=100)
    arguments = parser.parse_args()
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        figures, rows = asyncio.run(measure(arguments.gangs, progress))
    publish("admit", figures, seeds=[SEED], aims=AIMS, rows=rows, context={"gangs": arguments.gangs})


if __name__ == "__main__":
    main()
