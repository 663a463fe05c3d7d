"""Claims alone: what it costs each side to take a due run, when starting it costs nothing.

The stock worker's `run()` returns at once; our cluster is one that starts nothing. Both go through their own real claim
path, with all runs due at the same moment, and are timed from their first claim until the infrastructure of the last
run is told to start. Each run must be Pending and started exactly once. Nobody looks at the server meanwhile, and the
runs are claimed before the server begins to mark them late: both would cost it time too.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult
from rich.progress import Progress

from benchmarks import workers
from benchmarks.prefect_runs import create_due_runs, read_runs
from benchmarks.servers import PrefectServer
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.notices import Notice
from dsec_workers.clusters.protocol import Cluster, ClusterEvent, GangKey, LaunchOrder, ObservedGang

STOCK_LIMITS = (4, 8, None)
TIMEOUT_S = 300.0
SETTLE_S = 3.0
AHEAD_S = 10.0
"""How long before they are due the runs are made, besides a tenth of a second for each."""

_started: dict[str, float] = {}
"""When the infrastructure of each run was told to start, in the measurement that is under way."""


def _start(run_id: str) -> None:
    if run_id in _started:
        raise RuntimeError(f"run {run_id} was started twice")
    _started[run_id] = time.time()


class NoopResult(BaseWorkerResult):
    """Nothing was started."""


class NoopWorker(BaseWorker[BaseJobConfiguration, BaseVariables, NoopResult]):
    """Prefect's own worker with an infrastructure that costs nothing."""

    type = "bench-noop"
    job_configuration = BaseJobConfiguration

    async def run(self, flow_run: Any, configuration: Any, task_status: Any = None) -> NoopResult:
        """Claim the run and start nothing."""
        _start(str(flow_run.id))
        if task_status is not None:
            task_status.started("noop")
        return NoopResult(status_code=0, identifier="noop")


class NoopCluster:
    """A cluster of one node that starts nothing and never reports anything."""

    async def nodes(self) -> tuple[Node, ...]:
        """One node without devices."""
        return (Node(name="node-0"),)

    def allowance(self, gangs: Mapping[str, Gang], manifests: Mapping[str, Any]) -> None:
        """Nothing is limited."""

    async def launch(self, order: LaunchOrder) -> Mapping[str, Any]:
        """Nothing is started."""
        _start(order.key.run_id)
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
        async with NoopWorker(work_pool_name=pool, limit=limit, prefetch_seconds=0) as worker:
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
    original = gang_worker.open_cluster  # type: ignore[attr-defined]

    async def open_noop(*_: Any, **__: Any) -> Cluster:
        return NoopCluster()

    gang_worker.open_cluster = open_noop  # type: ignore[attr-defined]
    try:
        worker = gang_worker.GangWorker(work_pool_name=pool)
        async with anyio.create_task_group() as group:

            async def start() -> None:
                group.start_soon(lambda: worker.start(printer=lambda *_: None))

            rate = await _rate(pool, deployment, runs, label="claims only: ours", progress=progress, start=start)
            group.cancel_scope.cancel()
    finally:
        gang_worker.open_cluster = original  # type: ignore[attr-defined]
        os.environ.pop("DSEC_LEDGER_URL", None)
    return rate


async def _rate(
    pool: str, deployment: UUID, runs: int, *, label: str, progress: Progress, start: Callable[[], Awaitable[None]]
) -> float:
    """Runs a second, from the first Pending state by the server's clock to the last start, by the same machine's.

    The worker is up before the runs are due: how soon it notices is not what is measured here.
    """
    task = progress.add_task(label, total=runs)
    _started.clear()
    async with get_client() as client:
        due = datetime.now(UTC) + timedelta(seconds=AHEAD_S + runs / 10)
        ids = await create_due_runs(client, deployment, runs, due=due)
        await start()
        deadline = time.monotonic() + TIMEOUT_S
        while len(_started) < runs and time.monotonic() < deadline:
            await anyio.sleep(0.1)
            progress.update(task, completed=len(_started))
        await anyio.sleep(SETTLE_S)
        found = await read_runs(client, ids)
        pending = [run for run in found if run.state is not None and run.state.is_pending()]
        if set(_started) != {str(i) for i in ids} or len(pending) != runs:
            raise RuntimeError(f"{label}: of {runs} runs, {len(_started)} were started and {len(pending)} are Pending")
        first = [
            min(s.timestamp.timestamp() for s in await client.read_flow_run_states(i) if s.name == "Pending")
            for i in ids
        ]
        progress.update(task, completed=runs)
        return runs / (max(_started.values()) - min(first))
