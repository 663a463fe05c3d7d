"""Our side of the Kubernetes benchmark through Prefect, in a process of its own: the worker that users start.

    python -m benchmarks.kube_worker [QUOTAS]

A `dsec-gang` worker as `prefect worker start` makes it, told by its environment where Prefect, the ledger and the
cluster are; only what pods on KWOK nodes cannot do is played (`kube_pods_played`): a run whose pods have ended well is
told to the server as Completed, by a request of its own. Says {"ready"} when it leads, and at the end of its input
where its time went.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from benchmarks.kube_engine import policy_of, teams
from benchmarks.kube_pods_played import IN_NAME, POOL, PlayedCluster, lines, say
from benchmarks.kube_shapes import Quotas
from benchmarks.kube_timed import Timed
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics
from dsec_workers.clusters.protocol import Cluster
from dsec_workers.gang_worker import GangWorker
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.settings import WorkerSettings

ENGINES_AT_ONCE = 16
"""Requests in flight of pods that end: those of the server's own clients are not fewer."""
REQUEST_SECONDS = 120.0
PREFECT_METHODS = (
    "scheduled", "runs", "run", "run_at_leisure", "history", "how_many", "in_states", "deployments", "pool", "queues",
    "claim_pending", "claim_policy", "requeue", "tell_reason", "undo_claim", "finish", "logs", "artifact",
)  # fmt: skip


class InName(GangWorker):
    """The worker, with pods that run in name only."""

    def __init__(self, *, timed: Timed, **how: Any) -> None:
        super().__init__(**how)
        self._timed = timed
        self._engines = httpx.AsyncClient(base_url=os.environ["PREFECT_API_URL"], timeout=REQUEST_SECONDS)
        self._turns = asyncio.Semaphore(ENGINES_AT_ONCE)

    async def _opened(self, settings: WorkerSettings, registry: CollectorRegistry) -> Cluster:
        metrics = KubernetesMetrics(POOL, registry)
        api = await Api.connect(ClusterAccess(kubeconfig=os.environ["KUBECONFIG"]), metrics=metrics)
        for name in ("create", "delete", "list"):
            setattr(api, name, self._timed.wrap_async(f"kubernetes.{name}", getattr(api, name)))
        cluster = PlayedCluster(self._complete, api, IN_NAME, clock=SystemClock())
        await cluster.prepare()
        return cluster

    async def _complete(self, run_id: str) -> None:
        async with self._turns:
            body = {"state": {"type": "COMPLETED", "name": "Completed"}, "force": False}
            answer = await self._engines.post(f"/flow_runs/{run_id}/set_state", json=body)
            answer.raise_for_status()


def entitle(url: str, quotas: str) -> None:
    """Set the pool up as somebody would with `dsec`: its teams, and its policy."""
    ledger = Ledger.open(url, clock=SystemClock())
    try:
        for team in teams(Quotas(**json.loads(quotas))) if quotas else ():
            ledger.put_team(POOL, team)
        ledger.put_policy(POOL, policy_of(quotas), by="bench", why="KWOK's pods have nothing to lose")
    finally:
        ledger.close()


def watched(leading: Leading, timed: Timed) -> None:
    """Count what the worker asks of the ledger and of Prefect."""
    timed.ledger(leading.ledger)
    for name in PREFECT_METHODS:
        setattr(leading.api, name, timed.wrap_async(f"prefect.{name}", getattr(leading.api, name)))


def steps_of(metrics: WorkerMetrics) -> dict[str, float]:
    """Seconds of plan() and of each step of the loop, by the worker's own metrics."""
    wanted = ("dsec_plan_seconds_sum", "dsec_cycle_seconds_sum")
    samples = (sample for family in metrics.registry.collect() for sample in family.samples if sample.name in wanted)
    return {f"step.{each.labels['step']}" if "step" in each.labels else "plan": each.value for each in samples}


async def serve(quotas: str = "") -> None:
    """Work until the input ends."""
    await asyncio.to_thread(entitle, WorkerSettings.from_environment().ledger_url, quotas)
    timed = Timed()
    worker = InName(timed=timed, work_pool_name=POOL, name="bench")
    working = asyncio.create_task(worker.start(printer=partial(print, file=sys.stderr)))
    try:
        while worker.leading is None or not worker.leading.standing.adopted:
            if working.done():
                return await working
            await asyncio.sleep(0.05)
        watched(worker.leading, timed)
        say(ready=True)
        async for _ in lines():
            pass
        found = timed.told()
        found["seconds"] |= steps_of(worker.leading.metrics)
        say(**found)
    finally:
        if not working.done():
            os.kill(os.getpid(), signal.SIGTERM)  # as users stop it: gangs run on
        with suppress(asyncio.CancelledError, SystemExit):
            await working


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(*sys.argv[1:]))
