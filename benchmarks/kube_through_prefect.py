"""The same gangs as flow runs: a real Prefect server on PostgreSQL, a `dsec-gang` pool, deployments, and our worker.

As many submitters as the others have create the runs, each by one plain request; whatever a user's own client costs
beyond that is in no figure.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from benchmarks.kube_children import Engine, postgres_pid, process
from benchmarks.kube_engine import run_time
from benchmarks.kube_observer import LABEL
from benchmarks.kube_plane import NAMESPACE, SUBMITTERS, Site, at_once
from benchmarks.kube_pods_played import IMAGE, POOL, RUNS_FOR
from benchmarks.kube_shapes import Batch, Scenario, mixed
from benchmarks.servers import PrefectServer, prefect_server
from dsec_blocks.model.names import WORKER_TYPE
from dsec_workers.form import default_template

START_SECONDS = 120.0
REQUEST_SECONDS = 120.0
LEASE_SECONDS = 60
"""As the engine's: on a machine that is full of work a beat may come late; nobody stands by here."""
RUNS_FOR_VARIABLE = "runs_for_milliseconds"
SUMS = {
    "intake": ("step.poll", "step.watch"),
    "claims": ("prefect.claim_pending",),
    "other Prefect": (
        "prefect.requeue", "prefect.tell_reason", "prefect.undo_claim", "prefect.finish", "prefect.run",
        "prefect.run_at_leisure", "prefect.logs", "prefect.artifact",
    ),
    "plan": ("plan",),
    "ledger": ("ledger.",),
    "API server": ("kubernetes.",),
}  # fmt: skip
"""Seconds, by the names of what was timed; a name that ends in a dot stands for all that begin so."""
STAGES = {
    "taken in": "ledger.enqueue",
    "admitted": "ledger.admit_all",
    "claimed": "prefect.claim_pending",
    "launched": "kubernetes.create",
}


@dataclass(kw_only=True)
class ThroughPrefect:
    """Prefect, its pool and the worker on it."""

    engine: Engine
    http: httpx.AsyncClient
    deployments: Mapping[str, str]
    """Batch → its deployment's id."""
    created: list[float] = field(default_factory=list)
    """When the newest of them was created, for each `send`."""

    async def send(self, batches: Sequence[Batch]) -> None:
        """Create the runs of these batches, mixed, all due at once."""

        async def create(item: tuple[Batch, int]) -> None:
            batch, number = item
            body: dict[str, Any] = {"state": {"type": "SCHEDULED", "name": "Scheduled"}}
            if (queue := batch.queue_of(number)) is not None:
                body["work_queue_name"] = queue
            path = f"/deployments/{self.deployments[batch.name]}/create_flow_run"
            (await self.http.post(path, json=body)).raise_for_status()

        await at_once(mixed(batches), create)
        self.created.append(time.time())

    async def finish(self) -> dict[str, Any]:
        """Where the worker's time went, and when the last run was created."""
        return {**await self.engine.finish(), "created": self.created[-1] if self.created else None}


def where(profile: Mapping[str, Any], *, began: float) -> dict[str, str]:
    """Two columns: seconds after the first create by which each stage was through, and seconds spent on what."""
    last, seconds = profile["last"], profile["seconds"]
    through = {"created": profile["created"], **{stage: last.get(name) for stage, name in STAGES.items()}}
    spent = {
        what: sum(s for name, s in seconds.items() if any(_is(name, wanted) for wanted in names))
        for what, names in SUMS.items()
    }
    return {
        "through_s": " ".join(f"{stage} {at - began:.1f}" for stage, at in through.items() if at is not None),
        "spent_s": " ".join(f"{what} {total:.1f}" for what, total in spent.items()),
    }


def _is(name: str, wanted: str) -> bool:
    return name.startswith(wanted) if wanted.endswith(".") else name == wanted


@asynccontextmanager
async def through_prefect(here: Site, scenario: Scenario, *, ledger: str) -> AsyncIterator[ThroughPrefect]:
    """All of it, started; the worker leads."""
    async with AsyncExitStack() as stack:
        starting = prefect_server("postgres")
        server = await asyncio.to_thread(starting.__enter__)
        stack.push_async_callback(asyncio.to_thread, starting.__exit__, None, None, None)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=server.api_url, timeout=REQUEST_SECONDS, limits=httpx.Limits(max_connections=SUBMITTERS)
            )
        )
        deployments = await _furnish(http, scenario)
        told = () if scenario.quotas is None else (json.dumps(asdict(scenario.quotas)),)
        env = _environment(here, server, ledger)
        worker, log = await stack.enter_async_context(process(here, "kube_worker", *told, env=env))
        engine = Engine(process=worker, log=log)
        await engine.said(seconds=START_SECONDS)
        here.pids |= {"ours": worker.pid, "prefect": server.pid, **postgres_pid(server.home / "postgres")}
        yield ThroughPrefect(engine=engine, http=http, deployments=deployments)


def _environment(here: Site, server: PrefectServer, ledger: str) -> dict[str, str]:
    url = server.ledger_url("kube") if ledger == "postgres" else f"sqlite:///{here.home}/ledger.db"
    return {
        **server.client_env, "DSEC_CLUSTER": "kubernetes", "KUBECONFIG": str(here.plane.kubeconfig),
        "DSEC_NAMESPACE": NAMESPACE, "DSEC_IMAGE": IMAGE, "DSEC_LEDGER_URL": url, "DSEC_HOME": str(here.home / "dsec"),
        "DSEC_LEASE_TTL": f"{LEASE_SECONDS}s", "DSEC_HOLDER": "bench",
    }  # fmt: skip


def template() -> dict[str, Any]:
    """The pool's base job template: ours, with what prefect-kubernetes' has, and how long a pod is to be played."""
    found = default_template()
    found["variables"]["properties"][RUNS_FOR_VARIABLE] = {"type": "string", "title": "Runs for"}
    annotations = {RUNS_FOR: "{{ " + RUNS_FOR_VARIABLE + " }}"}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": IMAGE}]}}
    manifest = {"metadata": {"namespace": NAMESPACE}, "spec": {"template": pod}}
    found["job_configuration"]["job_manifest"] = manifest
    return found


def variables_of(batch: Batch) -> dict[str, Any]:
    """The job variables of a batch's deployment."""
    found = {
        "nodes": batch.members, "devices_per_node": batch.gpus, "priority": batch.priority, "grace": 0,
        "labels": {LABEL: batch.name},
    }  # fmt: skip
    return found if batch.run_seconds is None else {**found, RUNS_FOR_VARIABLE: run_time(batch)[RUNS_FOR]}


async def _furnish(http: httpx.AsyncClient, scenario: Scenario) -> dict[str, str]:
    async def post(path: str, **body: Any) -> dict[str, Any]:
        answer = await http.post(path, json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    await post("/work_pools/", name=POOL, type=WORKER_TYPE, base_job_template=template())
    for queue in scenario.quotas.queues() if scenario.quotas is not None else ():
        await post(f"/work_pools/{POOL}/queues", name=queue)
    flow = await post("/flows/", name="bench")
    return {
        batch.name: (
            await post(
                "/deployments/", name=batch.name, flow_id=flow["id"], work_pool_name=POOL, entrypoint="bench.py:bench",
                job_variables=variables_of(batch), enforce_parameter_schema=False,
            )
        )["id"]
        for batch in scenario.batches
    }  # fmt: skip
