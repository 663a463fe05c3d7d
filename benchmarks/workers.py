"""Workers and deployments under load: Prefect's stock process worker or ours, on a pool of their own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, get_client
from prefect.client.schemas.actions import WorkPoolCreate

from benchmarks.servers import PrefectServer
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster

STOCK, OURS = "stock", "ours"
POOL_TYPES = {STOCK: "process", OURS: "dsec-gang"}


@contextmanager
def worker(
    server: PrefectServer,
    side: str,
    pool: str,
    *,
    home: Path,
    slots: int = 1,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
) -> Iterator[Path]:
    """The side's worker; yields its log. Ours declares `nodes` × `slots` devices, stock gets `--limit slots`."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {**server.client_env, **(env or {})}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", POOL_TYPES[side]]
    if side == STOCK:
        environment["PREFECT_WORKER_QUERY_SECONDS"] = "1"
        command += ["--limit", str(slots)]
    else:
        environment |= {"DSEC_HOME": str(home), "DSEC_NODES": str(nodes), "DSEC_GPUS_PER_NODE": str(slots)}
        if server.postgres_url is not None:
            environment["DSEC_LEDGER_URL"] = server.ledger_url(pool)
    log_path = home / "worker.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield log_path
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if side == OURS:  # gangs outlive their worker; the benchmark's must not outlive the benchmark
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(_stop_gangs(home))).result()


async def _stop_gangs(home: Path) -> None:
    await LocalCluster(home=home, nodes=(), clock=SystemClock()).shutdown()


async def deploy(
    side: str, pool: str, directory: Path, entrypoint: str, variables: Mapping[str, Any] | None = None
) -> UUID:
    """`entrypoint` in `directory` deployed on a new pool of that side's type; returns the deployment's id."""
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name=pool, type=POOL_TYPES[side]), overwrite=True)
    return await deploy_on(pool, directory, entrypoint, variables)


async def deploy_on(pool: str, directory: Path, entrypoint: str, variables: Mapping[str, Any] | None = None) -> UUID:
    """`entrypoint` in `directory` deployed on `pool`, the ordinary way; returns the deployment's id."""
    flow: Any = await Flow.afrom_source(str(directory), entrypoint)
    deployment: UUID = await flow.adeploy(
        f"{pool}-{entrypoint.rpartition(':')[2]}",
        work_pool_name=pool,
        job_variables=dict(variables or {}),
        build=False,
        push=False,
        print_next_steps=False,
    )
    return deployment
