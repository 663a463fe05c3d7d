"""Claims alone: what it costs each side to take a due run, when starting it costs nothing.

The stock worker's `run()` returns at once; our cluster is one that starts nothing. Both go through their own real
claim path against the same server.
"""

import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
from prefect import Flow, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult
from rich.progress import Progress

from benchmarks.prefect_runs import create_due_runs, read_runs
from benchmarks.servers import PrefectServer


class NoopResult(BaseWorkerResult):
    """Nothing was started."""


class NoopWorker(BaseWorker[BaseJobConfiguration, BaseVariables, NoopResult]):
    """Prefect's own worker with an infrastructure that costs nothing."""

    type = "bench-noop"
    job_configuration = BaseJobConfiguration

    async def run(self, flow_run: Any, configuration: Any, task_status: Any = None) -> NoopResult:
        """Claim the run and start nothing."""
        if task_status is not None:
            task_status.started("noop")
        return NoopResult(status_code=0, identifier="noop")


async def deploy_noop(pool: str, pool_type: str, directory: Path, variables: dict[str, Any]) -> Any:
    """A pool and the trivial flow on it."""
    async with get_client() as client:
        template = NoopWorker.get_default_base_job_template() if pool_type == NoopWorker.type else None
        await client.create_work_pool(
            WorkPoolCreate(name=pool, type=pool_type, **({"base_job_template": template} if template else {})),
            overwrite=True,
        )
    flow = await Flow.afrom_source(str(directory), "trivial.py:trivial")
    return await flow.adeploy(
        f"noop-{pool}", work_pool_name=pool, job_variables=variables, build=False, push=False, print_next_steps=False
    )


async def stock_noop_rate(server: PrefectServer, *, runs: int, directory: Path, progress: Progress) -> float:
    """Runs claimed each second by the stock path, at its best throttle of those tried (4 at a time, and unlimited)."""
    best = 0.0
    for limit in (4, None):
        pool = f"noop-stock-{limit or 'all'}"
        deployment = await deploy_noop(pool, NoopWorker.type, directory, {})
        async with get_client() as client:
            ids = await create_due_runs(client, deployment, runs, due=datetime.now(UTC))
            task = progress.add_task(f"claims only: stock, {limit or 'no'} limit", total=runs)
            async with NoopWorker(work_pool_name=pool, limit=limit) as worker:
                await worker.sync_with_backend()
                started = time.monotonic()
                with anyio.move_on_after(30 + 3 * runs):
                    claimed = 0
                    while claimed < runs:
                        await worker.get_and_submit_flow_runs()
                        claimed = sum(run.infrastructure_pid is not None for run in await read_runs(client, ids))
                        progress.update(task, completed=claimed)
                elapsed = time.monotonic() - started
        best = max(best, claimed / elapsed)
    return best
