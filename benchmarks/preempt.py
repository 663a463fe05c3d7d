"""Preemption: from the notice to the preemptor's first instruction, fifty times.

    python -m benchmarks.preempt
    python -m benchmarks.preempt --evictions 5

One gang of two ranks trains on all devices. An urgent flow run arrives at a random moment; the gang snapshots (0.2 s of
work, measured), leaves, and resumes when the urgent run is done. Every tenth time it ignores the notice and is stopped
at the end of its grace. hand-over = the later of "the victim's device processes exited" and "the urgent flow's first
instruction", minus the notice, minus the measured snapshot (minus the grace for those that ignored it).
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from prefect import get_client
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.prefect_runs import summary, until
from benchmarks.report import publish
from benchmarks.servers import prefect_server, speaking_to
from benchmarks.workers import OURS, deploy, worker
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.gangs import GangState

SEED = 7
GRACE_S = 3.0
SNAPSHOT_S = 0.2
AIMS = {"handover_max_s": "≤ 0.5", "handover_p50_s": "", "lost_steps": "0"}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of `path`; none if it is not there yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def watch_exits(folder: Path, attempt: int) -> float:
    """When the last of the attempt's ranks was seen to have exited, by looking at its processes."""
    pids = {line["pid"] for line in read_lines(folder / "ranks.jsonl") if line["attempt"] == str(attempt)}

    def all_gone() -> bool:
        return not any(_lives(pid) for pid in pids)

    await until("the victim's ranks exit", all_gone)
    return time.time()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def one_eviction(
    client: Any, ledger: Ledger, *, urgent: Any, victim: str, folder: Path, ignores: bool, wait_s: float
) -> dict[str, Any]:
    """Evict the victim once; returns the measured times."""

    def trains() -> bool:
        gang = ledger.gang(victim)
        assert gang is not None
        if gang.state is GangState.ENDED:
            raise RuntimeError(f"the victim ended: {gang.outcome}")
        return gang.state is GangState.RUNNING and gang.first_commit_at is not None

    await until("the victim trains and has committed", trains)
    await asyncio.sleep(wait_s)
    gang = ledger.gang(victim)
    assert gang is not None
    if ignores:
        (folder / "ignore").touch()
        await asyncio.sleep(0.1)
    before = len(read_lines(folder / "urgent.jsonl"))
    snapshots = len(read_lines(folder / "snapshots-0.jsonl"))
    exited = asyncio.create_task(watch_exits(folder, gang.attempt))
    await client.create_flow_run_from_deployment(urgent)
    lines = await until("the urgent run starts", lambda: read_lines(folder / "urgent.jsonl")[before:])
    released_at = await exited
    (folder / "ignore").unlink(missing_ok=True)
    noticed = next(
        e for e in ledger.evictions("preempt", open_only=False) if (e.run_id, e.attempt) == (victim, gang.attempt)
    )
    work = (
        [max(line["seconds"] for line in read_lines(folder / f"snapshots-{rank}.jsonl")[snapshots:]) for rank in (0, 1)]
        if not ignores
        else [0.0]
    )
    finished = max(released_at, lines[0]["at"])
    allowance = GRACE_S if ignores else max(work)
    return {
        "attempt": gang.attempt,
        "ignored": ignores,
        "handover_s": finished - noticed.noticed_at - allowance,
        "released_s": released_at - noticed.noticed_at - allowance,
        "first_instruction_s": lines[0]["at"] - noticed.noticed_at - allowance,
        "snapshot_s": max(work),
    }


async def measure(evictions: int, progress: Progress) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """All evictions; returns the figures and a row each."""
    choose = random.Random(SEED)
    rows = []
    with (
        prefect_server("postgres") as server,
        speaking_to(server),
        tempfile.TemporaryDirectory(prefix="dsec-preempt-") as scratch,
    ):
        folder = Path(scratch) / "run"
        folder.mkdir()
        home = Path(scratch) / "home"
        here = Path(__file__).parent.parent
        shape = {"devices_per_node": 2, "grace": GRACE_S, "env": {"PYTHONPATH": str(here)}}
        victim = await deploy(OURS, "preempt", here, "benchmarks/flows.py:victim", {**shape, "priority": 1})
        urgent = await deploy(OURS, "preempt", here, "benchmarks/flows.py:urgent", {**shape, "priority": 50})
        with worker(server, OURS, "preempt", home=home, slots=2):
            async with get_client() as client:
                where = {"directory": str(folder)}
                run = await client.create_flow_run_from_deployment(
                    victim, parameters={**where, "snapshot_seconds": SNAPSHOT_S}
                )
                await client.update_deployment(urgent, _parameters(where))
                ledger = Ledger.open(server.ledger_url("preempt"), clock=SystemClock())
                await until("the victim is known to the ledger", lambda: ledger.gang(str(run.id)))
                for index in progress.track(range(evictions), description="evictions"):
                    rows.append(
                        await one_eviction(
                            client,
                            ledger,
                            urgent=urgent,
                            victim=str(run.id),
                            folder=folder,
                            ignores=index % 10 == 9,
                            wait_s=choose.uniform(0.0, 0.6),
                        )
                    )
                await client.set_flow_run_state(run.id, _cancelling())
                await until("the victim is cancelled", lambda: _ended(ledger, str(run.id)))
                ledger.close()
        ignored = {str(row["attempt"]) for row in rows if row["ignored"]}
        lost = sum(_repeated(read_lines(folder / f"steps-{rank}.jsonl"), ignored) for rank in (0, 1))
    handovers = summary([row["handover_s"] for row in rows])
    answered = [row["handover_s"] for row in rows if not row["ignored"]]
    figures = {
        "handover_p50_s": handovers["p50"],
        "handover_max_s": handovers["max"],
        "handover_p99_s": handovers["p99"],
        "answered_max_s": max(answered),
        "ignored_max_s": max([row["handover_s"] for row in rows if row["ignored"]], default=0.0),
        "lost_steps": float(lost),
        "evictions": float(len(rows)),
    }
    return figures, rows


def _parameters(values: dict[str, Any]) -> Any:
    from prefect.client.schemas.actions import DeploymentUpdate

    return DeploymentUpdate(parameters=values)


def _cancelling() -> Any:
    from prefect.states import Cancelling

    return Cancelling()


def _ended(ledger: Ledger, run_id: str) -> bool:
    gang = ledger.gang(run_id)
    return gang is not None and gang.state is GangState.ENDED


def _repeated(lines: list[dict[str, Any]], ignored: set[str]) -> int:
    """Steps in one rank's log that were executed twice, not counting what an attempt that ignored its notice did."""
    counts = Counter(line["step"] for line in lines if line["attempt"] not in ignored)
    return sum(count - 1 for count in counts.values())


def main() -> None:
    """Parse the arguments, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evictions", type=int, default=50)
    arguments = parser.parse_args()
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        figures, rows = asyncio.run(measure(arguments.evictions, progress))
    publish("preempt", figures, seeds=[SEED], aims=AIMS, rows=rows)


if __name__ == "__main__":
    main()
