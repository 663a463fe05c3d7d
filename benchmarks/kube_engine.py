"""Our side of the Kubernetes benchmark, in a process of its own: the worker's lifecycle over the Kubernetes adapter.

    python -m benchmarks.kube_engine KUBECONFIG LEDGER_URL [QUOTAS]

Takes a JSON list of batches a line, puts their gangs, mixed, into the ledger's queue (in pages of 200, as the intake
does, from 16 threads at most) and lets the production parts do the rest: election, plan(), the durable ledger, the
adapter, the cluster's events. Only Prefect is played (`kube_prefect`). Says {"ready"} and {"submitted"}, and at the end
of its input where the time went.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread

from benchmarks.kube_observer import LABEL
from benchmarks.kube_plane import NAMESPACE, SUBMITTERS, at_once
from benchmarks.kube_prefect import PromptPrefect
from benchmarks.kube_shapes import Batch, Quotas, mixed
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import MAX_PRIORITY, GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import ClusterEvent, Gone
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.lifecycle.term import LaunchSettings, Term
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api import Run
from dsec_workers.prefect_api.gateway import PAGE
from dsec_workers.scheduling import plan
from dsec_workers.scheduling.policy import Policy
from dsec_workers.settings import KUBERNETES, WorkerSettings

POOL = "bench"
IMAGE = "registry.k8s.io/pause:3.10"
RUNS_FOR = "dsec.io/runs-for-milliseconds"
"""An annotation that the simulated nodes of this repository's control plane obey."""
LEASE_SECONDS = 60.0
"""On a machine that is full of work, a beat may come late; nobody stands by here."""


@dataclass
class Timed:
    """Seconds and calls of the ledger by method (in whichever thread), and of plan()."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """One call."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.calls[name] = self.calls.get(name, 0) + 1

    def wrap(self, name: str, method: Any) -> Any:
        """`method`, counted."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return method(*args, **kwargs)
            finally:
                self.add(name, time.monotonic() - began)

        return timed


LEDGER_METHODS = (
    "admit_all", "claimed_all", "launched_all", "started_all", "release_all", "leave_all", "requeue_all", "end_all",
    "timed_all", "decide", "gang", "gangs", "holders", "enqueue", "set_reasons", "put_nodes", "preemptors", "evictions",
)  # fmt: skip


async def settings_of(intake: Intake, term: Term, run: Run) -> LaunchSettings:
    """The least a run can say: an image, the label by which the observer counts its pods, and how long they run."""
    pod = {"metadata": dict(run.job_variables), "spec": {"containers": [{"image": IMAGE}]}}
    manifest = {"metadata": {"namespace": NAMESPACE}, "spec": {"template": pod}}
    return LaunchSettings(env={}, name=run.name, command=None, working_dir=None, job_manifest=manifest)


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


class PlayedCluster(KubernetesCluster):
    """The production adapter, but the run of a gang whose pods have all ended well is Completed, as runs are."""

    def __init__(self, prefect: PromptPrefect, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._played = prefect

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """As they come."""
        async for event in super().events():
            if isinstance(event, Gone) and event.member_exits and not any(event.member_exits.values()):
                self._played.complete(event.key.run_id)
            yield event


def say(**what: Any) -> None:
    """One line to whoever started us."""
    print(json.dumps(what), flush=True)


async def serve(kubeconfig: str, ledger_url: str, quotas: str = "") -> None:
    """Lead until the input ends."""
    timed, clock, metrics = Timed(), SystemClock(), WorkerMetrics(POOL)
    log = logging.getLogger("dsec.bench")
    ledger = Ledger.open(ledger_url, clock=clock)
    for name in LEDGER_METHODS:
        setattr(ledger, name, timed.wrap(f"ledger.{name}", getattr(ledger, name)))
    settings = WorkerSettings(
        home=Path(), ledger_url=ledger_url, holder="bench", cluster=KUBERNETES, lease_ttl_seconds=LEASE_SECONDS
    )
    at = KubernetesSettings(pool=POOL, namespace=NAMESPACE, image=IMAGE, has_outposts=False, upload_seconds=0)
    api = await Api.connect(ClusterAccess(kubeconfig=kubeconfig))
    prefect, drain = PromptPrefect(), anyio.Event()
    cluster = PlayedCluster(prefect, api, at, clock=clock)
    for team in teams(Quotas(**json.loads(quotas))) if quotas else ():
        ledger.put_team(POOL, team)
    await cluster.prepare()
    leading = Leading(
        pool=POOL, settings=settings, clock=clock, ledger=ledger, api=prefect, client=None,  # type: ignore[arg-type]
        cluster=cluster, plan=timed.wrap("plan", plan), policy=Policy(min_run_seconds=0.0),
        launch_settings=settings_of, pool_id=lambda: None, log=log, drain=drain, metrics=metrics,
    )  # fmt: skip
    serving = asyncio.create_task(leading.serve())
    try:
        while not leading.standing.adopted:  # noqa: ASYNC110 - said once, at the start
            await asyncio.sleep(0.05)
        say(ready=True)
        async for line in _lines():
            batches = [Batch(**{**said, "queues": tuple(said["queues"])}) for said in json.loads(line)]
            await submit(batches, leading, prefect)
            say(submitted=[batch.name for batch in batches])
        say(seconds=timed.seconds, calls=timed.calls, requests=api.calls)
    finally:
        drain.set()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await cluster.close()
        ledger.close()


async def _lines() -> Any:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(*sys.argv[1:]))
