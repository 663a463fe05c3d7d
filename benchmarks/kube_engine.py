"""Our side of the Kubernetes benchmark, in a process of its own: the worker's lifecycle over the Kubernetes adapter.

    python -m benchmarks.kube_engine KUBECONFIG LEDGER_URL [QUOTAS]

Takes a JSON list of batches a line, puts their gangs, mixed, into the ledger's queue (in pages of 200, as the intake
does, from 16 threads at most) and lets the production parts do the rest: election, plan(), the durable ledger, the
adapter, the cluster's events. Only Prefect is played (`kube_prefect_played`). Says {"ready"} and {"submitted"}, and at
the end of its input where the time went.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread

from benchmarks.kube_observer import LABEL
from benchmarks.kube_plane import NAMESPACE, SUBMITTERS, at_once
from benchmarks.kube_pods_played import IMAGE, IN_NAME, POOL, RUNS_FOR, PlayedCluster, lines, say
from benchmarks.kube_prefect_played import PromptPrefect
from benchmarks.kube_shapes import Batch, Quotas, mixed
from benchmarks.kube_timed import Timed
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import MAX_PRIORITY, GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.garbage_collection import look_at_what_is_new
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.lifecycle.term import LaunchSettings, Term
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api import Run
from dsec_workers.prefect_api.gateway import PAGE
from dsec_workers.scheduling import plan
from dsec_workers.scheduling.policy import Policy
from dsec_workers.settings import KUBERNETES, WorkerSettings

LEASE_SECONDS = 60.0
"""On a machine that is full of work, a beat may come late; nobody stands by here."""


async def settings_of(intake: Intake, term: Term, run: Run) -> LaunchSettings:
    """The least a run can say: an image, the label by which the observer counts its pods, and how long they run."""
    return LaunchSettings(
        env={}, name=run.name, command=None, working_dir=None, job_manifest=manifest(**run.job_variables)
    )


def manifest(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    """A pool's Job that says no more than the image and what its pods are marked with."""
    pod = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
    spec = {"containers": [{"image": IMAGE}]}
    return {"metadata": {"namespace": NAMESPACE}, "spec": {"template": {**pod, "spec": spec}}}


def run_time(batch: Batch) -> dict[str, str]:
    """How the control plane is told when the batch's pods end."""
    return {} if batch.run_seconds is None else {RUNS_FOR: f"{batch.run_seconds * 1000:.0f}"}


def teams(quotas: Quotas) -> Iterator[Team]:
    """A team for each cohort, which owns nothing itself and borrows nothing, and one for each queue below it."""
    for cohort, queues in quotas.by_cohort().items():
        yield Team(name=cohort, nominal_devices=0, borrow_devices=0)
        for name in queues:
            yield Team(
                name=name, nominal_devices=quotas.gpus, borrow_devices=quotas.borrowing, parent=cohort,
                highest_priority=MAX_PRIORITY,
            )  # fmt: skip


def policy_of(quotas: str) -> dict[str, float]:
    """What differs from the policy as shipped: nothing where there are quotas, whose gangs run for a second at most.

    Elsewhere a full cluster is reclaimed, whose pods never commit anything and are not to be spared until they have.
    """
    return {} if quotas else {"min_run_seconds": 0.0}


def gang_of(batch: Batch, number: int, run_id: str) -> Gang:
    """One gang of the batch. Its pods end at once when they are told, as the peers' do: no grace."""
    now = time.time()
    request = GangRequest(nodes=batch.members, devices_per_node=batch.gpus, priority=batch.priority, grace_seconds=0.0)
    return Gang(
        run_id=run_id, name=run_id, pool=POOL, team=batch.queue_of(number) or "default", request=request,
        state=GangState.WAITING, submitted_at=now, eligible_at=now,
    )  # fmt: skip


async def submit(batches: Sequence[Batch], leading: Leading, prefect: PromptPrefect) -> None:
    """Put the batches into the queue and ring."""
    assert leading.fence is not None and leading.loop is not None
    fence, term = leading.fence, leading.loop.term
    gangs = [gang_of(batch, number, str(uuid4())) for batch, number in mixed(batches)]
    for gang, (batch, _) in zip(gangs, mixed(batches), strict=True):
        prefect.schedule(gang.run_id, {LABEL: batch.name}, run_time(batch))

    async def put(some: list[Gang]) -> None:
        await anyio.to_thread.run_sync(leading.ledger.enqueue, fence, some)
        term.wake.ring()

    await at_once([gangs[i : i + PAGE] for i in range(0, len(gangs), PAGE)], put, limit=SUBMITTERS)


async def serve(kubeconfig: str, ledger_url: str, quotas: str = "") -> None:
    """Lead until the input ends."""
    timed, clock, metrics = Timed(), SystemClock(), WorkerMetrics(POOL)
    log = logging.getLogger("dsec.bench")
    ledger = Ledger.open(ledger_url, clock=clock)
    timed.ledger(ledger)
    settings = WorkerSettings(
        home=Path(), ledger_url=ledger_url, holder="bench", cluster=KUBERNETES, lease_ttl_seconds=LEASE_SECONDS
    )
    api = await Api.connect(ClusterAccess(kubeconfig=kubeconfig))
    prefect, drain = PromptPrefect(), anyio.Event()

    async def complete(run_id: str) -> None:
        prefect.complete(run_id)

    cluster = PlayedCluster(complete, api, IN_NAME, clock=clock)
    for team in teams(Quotas(**json.loads(quotas))) if quotas else ():
        ledger.put_team(POOL, team)
    await cluster.prepare()
    leading = Leading(
        pool=POOL, settings=settings, clock=clock, ledger=ledger, api=prefect, client=None,  # type: ignore[arg-type]
        cluster=cluster, plan=timed.wrap("plan", plan), policy=Policy(**policy_of(quotas)),
        launch_settings=settings_of, pool_id=lambda: None, log=log, drain=drain, metrics=metrics,
    )  # fmt: skip
    look_at_what_is_new()
    serving = asyncio.create_task(leading.serve())
    try:
        while not leading.standing.adopted:  # noqa: ASYNC110 - said once, at the start
            await asyncio.sleep(0.05)
        say(ready=True)
        async for line in lines():
            batches = [Batch(**{**said, "queues": tuple(said["queues"])}) for said in json.loads(line)]
            await submit(batches, leading, prefect)
            say(submitted=[batch.name for batch in batches])
        say(**timed.told(), requests=api.calls)
    finally:
        drain.set()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await cluster.close()
        ledger.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(*sys.argv[1:]))
