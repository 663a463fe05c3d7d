"""A site under test: a pool on a real Prefect server, a ledger, declared GPUs, and workers as real processes."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import httpx

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.teams import Team
from dsec_workers.form import default_template
from tests.fixtures.forking import Forked, ForkedModule, Zygote, start_module, the_zygote
from tests.fixtures.ledgers import migrated
from tests.fixtures.prefect import PrefectServer

FLOWS = Path(__file__).parent
PATIENCE = float(os.environ.get("DSEC_TEST_PATIENCE") or 1.0)
"""How many times longer than usual things may take before a wait gives up: for a machine that does much else."""
WorkerProcess: TypeAlias = "subprocess.Popen[bytes] | Forked | ForkedModule"
LEDGER_LOOK_SECONDS, SERVER_LOOK_SECONDS = 0.1, 0.2
"""How often a wait looks: each look at the Prefect server costs it ten milliseconds that others wait for."""
TERMINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class PatientClient(httpx.Client):
    """A server on SQLite answers 503 when its database is locked; a user would click again."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        for _ in range(20):
            response = super().send(request, **options)
            if response.status_code != 503:
                break
            time.sleep(0.2)
        return response


@dataclass
class Site:
    """What a test does to a pool, and what it sees of it."""

    server: PrefectServer
    home: Path
    nodes: int = 2
    gpus: int = 4
    ledger_url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    api_url: str = ""
    pool: str = field(default_factory=lambda: f"pool-{uuid4().hex[:8]}")
    zygote: Zygote | None = None
    """Forks the workers; without it they are started by their command line, and have an exit status."""
    command: Sequence[str] = ()
    """That command line, a module and its words; `prefect worker start` for the pool when empty."""
    workers: list[WorkerProcess] = field(default_factory=list)
    _deployments: dict[tuple[str, str], str] = field(default_factory=dict)
    _ledger: Ledger | None = None

    def __post_init__(self) -> None:
        self.api_url = self.api_url or self.server.api_url
        self.ledger_url = self.ledger_url or migrated(self.home / "ledger.db")
        self.http = PatientClient(base_url=self.server.api_url, timeout=30)
        body = {"name": self.pool, "type": "dsec-gang", "base_job_template": default_template()}
        self.http.post("work_pools/", json=body).raise_for_status()

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger.open(self.ledger_url, clock=SystemClock())
        return self._ledger

    def team(self, name: str, **fields: Any) -> None:
        self.http.post(f"work_pools/{self.pool}/queues", json={"name": name}).raise_for_status()
        self.team_in_ledger(name, **fields)

    def team_in_ledger(self, name: str, **fields: Any) -> None:
        self.ledger.put_team(self.pool, Team(name=name, **{"nominal_devices": 0, **fields}))

    def commit(self, run_id: str) -> None:
        """As if the gang had committed a checkpoint: its minimum run time is over."""
        gang = self.ledger.gang(run_id)
        lease = self.ledger.lease(self.pool)
        assert gang is not None
        assert lease is not None
        fence = Fence(self.pool, lease.holder, lease.token)
        self.ledger.committed(fence, run_id, gang.attempt, at=time.time(), step=1, seconds=0.1)

    def start_worker(self, **environment: str) -> WorkerProcess:
        settings = {
            "DSEC_HOME": str(self.home),
            "DSEC_LEDGER_URL": self.ledger_url,
            "DSEC_NODES": str(self.nodes),
            "DSEC_GPUS_PER_NODE": str(self.gpus),
            "DSEC_LEASE_TTL": "3",
            "DSEC_SWEEP": "3",
            "PREFECT_API_URL": self.api_url,
            "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DSEC_")}
        env = {**kept, **self.server.environment, **settings, **self.environment, **environment}
        log = self.home / f"worker-{len(self.workers)}.log"
        log.touch()
        process = self._fork_worker(env, log) if self.zygote else self._command_worker(env, log)
        self.workers.append(process)
        return process

    def _fork_worker(self, env: dict[str, str], log: Path) -> Forked:
        assert self.zygote is not None
        if env.get("DSEC_CLUSTER") != "kubernetes":  # there a gang's processes are forked in its pods
            self.zygote.fork_a_fork_server(self.home, env)
        return Forked(self.zygote.fork("worker", env=env, log=log, argument=self.pool))

    def _command_worker(self, env: dict[str, str], log: Path) -> "subprocess.Popen[bytes] | ForkedModule":
        module, *words = self.command or ("prefect", "worker", "start", "-p", self.pool, "--type", "dsec-gang")
        zygote = the_zygote()
        if zygote is not None:
            zygote.prepare("worker")
            zygote.fork_a_fork_server(self.home, env)
        return start_module(module, words, env=env, log=log)

    def worker_log(self, number: int = -1) -> str:
        number = number % len(self.workers)
        return (self.home / f"worker-{number}.log").read_text(errors="replace")

    def deployment(self, flow: str, **variables: Any) -> str:
        """The deployment of a flow of `flows_under_test`, or of an entrypoint `file.py:flow` seen from this folder,
        made as `prefect deploy` makes it.
        """
        key = (flow, repr(sorted(variables.items())))
        if key not in self._deployments:
            entrypoint = flow if ":" in flow else f"flows_under_test.py:{flow}"
            flow_id = (
                self.http.post("flows/", json={"name": entrypoint.rpartition(":")[2]}).raise_for_status().json()["id"]
            )
            body = {
                "name": f"{self.pool}-{len(self._deployments)}",
                "flow_id": flow_id,
                "work_pool_name": self.pool,
                "entrypoint": entrypoint,
                "path": str(FLOWS),
                "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(FLOWS)}}],
                "job_variables": variables,
                "enforce_parameter_schema": False,
            }
            self._deployments[key] = self.http.post("deployments/", json=body).raise_for_status().json()["id"]
        return self._deployments[key]

    def submit(
        self,
        flow: str,
        *,
        parameters: dict[str, Any] | None = None,
        queue: str | None = None,
        due: float | None = None,
        policy: dict[str, Any] | None = None,
        overrides: dict[str, Any] | None = None,
        **variables: Any,
    ) -> str:
        """A run of the flow, as a click on Run makes it."""
        body: dict[str, Any] = {"parameters": parameters or {}, "state": {"type": "SCHEDULED", "name": "Scheduled"}}
        if due is not None:
            details = {"scheduled_time": datetime.fromtimestamp(due, tz=UTC).isoformat()}
            body["state"] |= {"state_details": details}
        if queue is not None:
            body["work_queue_name"] = queue
        if policy is not None:
            body["empirical_policy"] = policy
        if overrides is not None:
            body["job_variables"] = overrides
        deployment = self.deployment(flow, **variables)
        answer = self.http.post(f"deployments/{deployment}/create_flow_run", json=body)
        assert answer.status_code < 300, answer.text
        return str(answer.json()["id"])

    def run(self, run_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.http.get(f"flow_runs/{run_id}").raise_for_status().json()
        return answer

    def state(self, run_id: str) -> tuple[str, str, str]:
        state = self.run(run_id)["state"]
        return state["type"], state["name"], state["message"] or ""

    def history(self, run_id: str) -> list[str]:
        states = self.http.get("flow_run_states/", params={"flow_run_id": run_id}).raise_for_status().json()
        return [state["name"] for state in states]

    def messages(self, run_id: str) -> list[str]:
        states = self.http.get("flow_run_states/", params={"flow_run_id": run_id}).raise_for_status().json()
        return [state["message"] or "" for state in states]

    def logs(self, run_id: str) -> list[str]:
        body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
        found = self.http.post("logs/filter", json=body).raise_for_status().json()
        return [line["message"] for line in found]

    def artifacts(self, key: str, **more: Any) -> list[dict[str, Any]]:
        body = {"artifacts": {"key": {"any_": [key]}, **more}}
        found: list[dict[str, Any]] = self.http.post("artifacts/filter", json=body).raise_for_status().json()
        return found

    def set_state(self, run_id: str, kind: str, name: str | None = None, *, force: bool = False) -> dict[str, Any]:
        body = {"state": {"type": kind, "name": name or kind.capitalize()}, "force": force}
        answer: dict[str, Any] = self.http.post(f"flow_runs/{run_id}/set_state", json=body).raise_for_status().json()
        return answer

    def gang(self, run_id: str) -> Gang | None:
        return self.ledger.gang(run_id)

    def wait(
        self, what: str, condition: Callable[[], Any], seconds: float = 40.0, *, every: float = LEDGER_LOOK_SECONDS
    ) -> Any:
        deadline = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(every)
        logs = "\n".join(self.worker_log(i)[-3000:] for i in range(len(self.workers)))
        raise AssertionError(f"not within {seconds} s: {what}\n{logs}")

    def wait_state(self, run_id: str, *wanted: str, seconds: float = 40.0) -> tuple[str, str, str]:
        """Until the run's state has one of the types or names."""
        try:
            found: tuple[str, str, str] = self.wait(
                f"run {run_id} to be {' or '.join(wanted)}",
                lambda: (s := self.state(run_id)) and (s if s[0] in wanted or s[1] in wanted else None),
                seconds,
                every=SERVER_LOOK_SECONDS,
            )
        except AssertionError as late:
            raise AssertionError(f"{late}\nthe run is {self.state(run_id)}, after {self.history(run_id)}") from None
        return found

    def wait_gang(self, run_id: str, *wanted: GangState, seconds: float = 40.0) -> Gang:
        gang: Gang = self.wait(
            f"gang {run_id} to be {' or '.join(wanted)}",
            lambda: g if (g := self.gang(run_id)) is not None and g.state in wanted else None,
            seconds,
        )
        return gang

    def stop_worker(self, process: WorkerProcess, number: int = signal.SIGTERM) -> float:
        """Signal the worker; how long it took to exit."""
        began = time.monotonic()
        process.send_signal(number)
        process.wait(timeout=60)
        return time.monotonic() - began

    def drained_in(self) -> float:
        """The seconds that the newest worker took from the signal to its end, as it says itself."""
        return float(re.findall(r"([0-9.]+) s after it was asked to", " ".join(self.worker_log().split()))[-1])

    def close(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=60)
        self._shutdown_cluster()
        if self._ledger is not None:
            self._ledger.close()
        self.http.close()

    def _shutdown_cluster(self) -> None:
        import asyncio

        from dsec_workers.clusters.local import LocalCluster

        async def stop() -> None:
            cluster = LocalCluster(home=self.home, nodes=(), clock=SystemClock())
            await cluster.shutdown(grace_seconds=0.5)

        asyncio.run(stop())
