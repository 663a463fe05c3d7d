"""Flow runs as load: make many due at the same moment, wait until all are terminal, read the server's timestamps."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Scheduled
from rich.progress import Progress

TRIVIAL_FLOW = """\
import os
import time

from prefect import flow


@flow
def trivial() -> None:
    first_line = time.time()
    if path := os.environ.get("BENCH_FIRST_LINES"):
        with open(path, "a") as file:
            file.write(f"{first_line}\\n")
"""
PAGE = 100
PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a set of runs. Times are seconds."""

    wall_s: float
    """First due → last terminal, by the server's timestamps."""
    states: Mapping[str, int]

    def completed(self, count: int) -> bool:
        """Whether every run ended well."""
        return self.states.get("COMPLETED", 0) == count


def write_flow(directory: Path) -> Path:
    """The trivial flow's file in `directory`."""
    path = directory / "trivial.py"
    path.write_text(TRIVIAL_FLOW, encoding="utf-8")
    return path


async def create_due_runs(
    client: PrefectClient, deployment_id: UUID, count: int, *, due: datetime, concurrency: int = 8
) -> list[UUID]:
    """`count` runs of a deployment, all scheduled for `due`."""
    gate = asyncio.Semaphore(concurrency)

    async def create() -> UUID:
        async with gate:
            run = await client.create_flow_run_from_deployment(deployment_id, state=Scheduled(scheduled_time=due))
            return run.id

    return list(await asyncio.gather(*(create() for _ in range(count))))


async def read_runs(client: PrefectClient, ids: Sequence[UUID]) -> list[FlowRun]:
    """All runs of `ids`, page by page."""
    runs: list[FlowRun] = []
    for start in range(0, len(ids), PAGE):
        page = FlowRunFilter(id=FlowRunFilterId(any_=list(ids[start : start + PAGE])))
        runs += await client.read_flow_runs(flow_run_filter=page, limit=PAGE, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
    return runs


async def wait_until_terminal(
    client: PrefectClient, ids: Sequence[UUID], *, due: datetime, timeout_s: float, label: str, progress: Progress
) -> Outcome:
    """Wait, with a progress bar, until all runs are terminal or the time is up."""
    task = progress.add_task(label, total=len(ids))
    deadline = datetime.now(UTC) + timedelta(seconds=timeout_s)
    while True:
        runs = await read_runs(client, ids)
        ended = [run for run in runs if run.state is not None and run.state.is_final()]
        progress.update(task, completed=len(ended))
        if len(ended) == len(ids) or datetime.now(UTC) > deadline:
            break
        await asyncio.sleep(0.5)
    last = max((run.state.timestamp for run in ended if run.state is not None), default=deadline)
    states = Counter(run.state.type.value if run.state is not None else "NONE" for run in runs)
    return Outcome(wall_s=(last - due).total_seconds(), states=dict(states))


async def until(what: str, found: Any) -> Any:
    """Poll `found()` until it is true, at most `PATIENCE_S` seconds; returns what it found."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.005)
    return value


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum of `values`."""
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))],
        "max": ordered[-1],
    }


def job_variables(**given: Any) -> dict[str, Any]:
    """The job variables that are set."""
    return {name: value for name, value in given.items() if value is not None}
