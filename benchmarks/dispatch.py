"""Dispatch: the same trivial runs through Prefect's stock process worker and through ours, in one run.

    python -m benchmarks.dispatch                 # the whole comparison, about half an hour
    python -m benchmarks.dispatch --runs 20 --concurrency 4 --databases sqlite
    python -m benchmarks.dispatch --only noop --databases postgres      # or: start, wall

Every run is due at the same moment, and a worker is up and polling before it. Wall = first due → last terminal by the
server's timestamps. The stock worker polls each second (its default is ten: this is its best), ours as shipped; both
are offered the same number of runs at a time: `--limit N` there, N declared devices and one-device gangs here.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.noop import ours_noop_rate, stock_noop_rate
from benchmarks.prefect_runs import Outcome, create_due_runs, summary, wait_until_terminal, write_flow
from benchmarks.report import publish
from benchmarks.servers import DATABASES, PrefectServer, prefect_server, speaking_to
from benchmarks.workers import OURS, STOCK, deploy, worker

AIMS = {
    "wall_ratio": "≥ 8",
    "noop_rate_ratio_sqlite": "≥ 4",
    "noop_rate_ratio_postgres": "≥ 4",
    "start_p50_s": "≤ 0.4",
}


async def measure_wall(
    server: PrefectServer, side: str, *, runs: int, slots: int, directory: Path, progress: Progress, label: str
) -> Outcome:
    """One side's wall time for `runs` trivial runs, `slots` at a time."""
    from prefect import get_client

    pool = f"{side}-{slots}"
    variables = {} if side == STOCK else {"devices_per_node": 1}
    deployment = await deploy(side, pool, directory, "trivial.py:trivial", variables)
    with worker(server, side, pool, slots=slots, home=directory / pool):
        async with get_client() as client:
            due = datetime.now(UTC) + timedelta(seconds=12 + runs / 6)
            ids = await create_due_runs(client, deployment, runs, due=due)
            outcome = await wait_until_terminal(
                client, ids, due=due, timeout_s=30 + 8 * runs, label=label, progress=progress
            )
    if not outcome.completed(runs):
        print(f"{label}: not every run completed: {dict(outcome.states)}", file=sys.stderr)
    return outcome


async def measure_start(server: PrefectServer, *, runs: int, directory: Path, progress: Progress) -> list[float]:
    """Seconds from the Pending state's timestamp to the first line of the flow's file, runs one at a time."""
    from prefect import get_client

    first_lines = directory / "first-lines"
    variables = {"devices_per_node": 1, "env": {"BENCH_FIRST_LINES": str(first_lines)}}
    deployment = await deploy(OURS, "ours-start", directory, "trivial.py:trivial", variables)
    starts = []
    with worker(server, OURS, "ours-start", home=directory / "ours-start"):
        async with get_client() as client:
            task = progress.add_task("start, one at a time", total=runs)
            for _ in range(runs):
                run = await client.create_flow_run_from_deployment(deployment)
                while not (run.state is not None and run.state.is_final()):
                    await asyncio.sleep(0.05)
                    run = await client.read_flow_run(run.id)
                history = await client.read_flow_run_states(run.id)
                pending = next(state for state in history if state.name == "Pending")
                first_line = float(first_lines.read_text().splitlines()[-1])
                starts.append(first_line - pending.timestamp.timestamp())
                progress.advance(task)
    return starts


async def compare(arguments: argparse.Namespace, progress: Progress) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Every measurement; returns the figures and a row per wall time."""
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    walls: dict[str, list[float]] = {STOCK: [], OURS: []}
    for database in arguments.databases:
        with (
            prefect_server(database) as server,
            speaking_to(server),
            tempfile.TemporaryDirectory(prefix="dsec-flow-") as folder,
        ):
            directory = Path(folder)
            write_flow(directory)
            if "noop" in arguments.only:
                rates = {
                    STOCK: await stock_noop_rate(runs=arguments.runs, directory=directory, progress=progress),
                    OURS: await ours_noop_rate(server, runs=arguments.runs, directory=directory, progress=progress),
                }
                figures[f"noop_rate_ratio_{database}"] = rates[OURS] / rates[STOCK]
                figures |= {f"noop_rate_{side}_{database}": rate for side, rate in rates.items()}
            if database == arguments.wall_database and "start" in arguments.only:
                starts = summary(
                    await measure_start(server, runs=arguments.starts, directory=directory, progress=progress)
                )
                figures |= {f"start_{name}_s": value for name, value in starts.items()}
            if database == arguments.wall_database and "wall" in arguments.only:
                for slots in arguments.concurrency:
                    for side in arguments.sides:
                        label = f"{database}: {side}, {slots} at a time"
                        outcome = await measure_wall(
                            server,
                            side,
                            runs=arguments.runs,
                            slots=slots,
                            directory=directory,
                            progress=progress,
                            label=label,
                        )
                        rows.append(
                            {"database": database, "side": side, "at a time": slots, "wall_s": outcome.wall_s,
                             "completed": outcome.states.get("COMPLETED", 0), "of": arguments.runs}
                        )  # fmt: skip
                        if outcome.completed(arguments.runs):
                            walls[side].append(outcome.wall_s)
    figures |= {f"wall_{side}_best_s": min(seconds) for side, seconds in walls.items() if seconds}
    if walls[STOCK] and walls[OURS]:
        figures["wall_ratio"] = min(walls[STOCK]) / min(walls[OURS])
    return figures, rows


def main() -> None:
    """Parse the arguments, compare, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[4, 8, 16])
    parser.add_argument("--databases", type=lambda text: text.split(","), default=list(DATABASES))
    parser.add_argument("--wall-database", choices=DATABASES, default="postgres")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["noop", "start", "wall"])
    parser.add_argument("--sides", type=lambda text: text.split(","), default=[STOCK, OURS], help="of the wall times")
    arguments = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        figures, rows = asyncio.run(compare(arguments, progress))
    order = ["wall_ratio", "noop_rate_ratio_sqlite", "noop_rate_ratio_postgres", "start_p50_s"]
    ordered = {name: figures[name] for name in [*order, *sorted(figures)] if name in figures}
    whole = arguments.only == parser.get_default("only") and len(arguments.sides) == len(arguments.databases) == 2
    publish("dispatch" if whole else "dispatch-part", ordered, aims=AIMS, rows=rows, context={"runs": arguments.runs})


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # The stock worker ran in this process: Prefect's exit hook would offer what is left of its events, one by one and
    # for an hour, to servers that are gone.
    os._exit(0)
