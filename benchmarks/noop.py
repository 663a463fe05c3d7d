"""Claims alone: what it costs each side to take a due run, when starting it costs nothing.

The stock worker's `run()` returns at once; our cluster is one that starts nothing. Both go through their own real claim
path, with all runs overdue, and are timed from their first claim until the last run carries its infrastructure id.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult
from rich.progress import Progress

from benchmarks import workers
from benchmarks.prefect_runs import create_due_runs, read_runs
from benchmarks.servers import PrefectServer
from dsec_blocks.model.devices import Node
from dsec_blocks.model.notices import Notice
from dsec_workers.clusters.protocol import ClusterEvent, GangKey, LaunchOrder, ObservedGang

STOCK_LIMITS = (4, 8, None)
TIMEOUT_S = 300.0
SETTLE_S = 6.0
LOOK_S = 1.0
"""Looking costs the server time too: often enough to end soon, seldom enough not to be what is measured."""


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


class NoopCluster:
    """A cluster of one node that starts nothing and never reports anything."""

    async def nodes(self) -> tuple[Node, ...]:
        """One node without devices."""
        return (Node(name="node-0"),)

    async def launch(self, order: LaunchOrder) -> Mapping[str, Any]:
        """Nothing is started."""
        return {"noop": True}

    async def notify(self, key: GangKey, notice: Notice) -> None:
        """Nobody to tell."""

    async def withdraw(self, key: GangKey) -> bool:
        """Nothing to take back."""
        return True

    async def stop(self, key: GangKey, grace_seconds: float) -> None:
        """Nothing to stop."""

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """Nothing happens."""
        await anyio.sleep_forever()
        yield  # type: ignore[misc]

    async def adopt(self) -> tuple[ObservedGang, ...]:
        """Nothing runs."""
        return ()

    async def forget(self, key: GangKey) -> None:
        """Nothing is kept."""

    async def prepare(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to close."""


async def stock_noop_rate(*, runs: int, directory: Path, progress: Progress) -> float:
    """Runs claimed each second by the stock path, at the best of several limits."""
    best = 0.0
    for limit in STOCK_LIMITS:
        pool = f"noop-stock-{limit or 'all'}"
        async with get_client() as client:
            template = NoopWorker.get_default_base_job_template()
            create = WorkPoolCreate(name=pool, type=NoopWorker.type, base_job_template=template)
            await client.create_work_pool(create, overwrite=True)
        deployment = await workers.deploy_on(pool, directory, "trivial.py:trivial")
        async with NoopWorker(work_pool_name=pool, limit=limit) as worker:
            await worker.sync_with_backend()

            async def poll(worker: NoopWorker = worker) -> None:
                while True:
                    await worker.get_and_submit_flow_runs()
                    await anyio.sleep(0.2)

            async with anyio.create_task_group() as group:

                async def start(begin: Any = group.start_soon, poll: Any = poll) -> None:
                    begin(poll)

                label = f"claims only: stock, limit {limit or 'none'}"
                best = max(best, await _rate(pool, deployment, runs, label=label, progress=progress, start=start))
                group.cancel_scope.cancel()
    return best


async def ours_noop_rate(server: PrefectServer, *, runs: int, directory: Path, progress: Progress) -> float:
    """Runs claimed each second by our path, its ledger durable as always."""
    import os

    from dsec_workers import gang_worker

    pool = "noop-ours"
    deployment = await workers.deploy(workers.OURS, pool, directory, "trivial.py:trivial")
    os.environ["DSEC_HOME"] = str(directory / pool)
    if server.postgres_url is not None:
        os.environ["DSEC_LEDGER_URL"] = server.ledger_url(pool)
    original = gang_worker._open_cluster

    async def open_noop(_: Any) -> Any:
        return NoopCluster()

    gang_worker._open_cluster = open_noop
    try:
        worker = gang_worker.GangWorker(work_pool_name=pool)
        async with anyio.create_task_group() as group:

            async def start() -> None:
                group.start_soon(lambda: worker.start(printer=lambda *_: None))

            rate = await _rate(pool, deployment, runs, label="claims only: ours", progress=progress, start=start)
            group.cancel_scope.cancel()
    finally:
        gang_worker._open_cluster = original
        os.environ.pop("DSEC_LEDGER_URL", None)
    return rate


async def _rate(
    pool: str, deployment: UUID, runs: int, *, label: str, progress: Progress, start: Callable[[], Awaitable[None]]
) -> float:
    """Runs a second, from the first Pending state to the last run's infrastructure id, both by the server's clock.

    The runs are overdue and the worker is up while the pool is paused: nothing is claimed ahead of time, and how soon
    a worker notices is not what is measured here.
    """
    task = progress.add_task(label, total=runs)
    async with get_client() as client:
        await client.update_work_pool(pool, WorkPoolUpdate(is_paused=True))
        ids = await create_due_runs(client, deployment, runs, due=datetime.now(UTC))
        await start()
        await anyio.sleep(SETTLE_S)
        await client.update_work_pool(pool, WorkPoolUpdate(is_paused=False))
        deadline, claimed = time.monotonic() + TIMEOUT_S, 0
        while claimed < runs and time.monotonic() < deadline:
            await anyio.sleep(LOOK_S)
            found = await read_runs(client, ids)
            claimed = sum(run.infrastructure_pid is not None for run in found)
            progress.update(task, completed=claimed)
        last = max(run.updated.timestamp() for run in found if run.updated is not None)
        first = [
            min(s.timestamp.timestamp() for s in await client.read_flow_run_states(i) if s.name == "Pending")
            for i in ids
        ]
        return claimed / (last - min(first))
