"""The demo's own installation: a home, a Prefect server, a ledger, a worker and three nodes below .dsec.

Nothing of the user's is touched: the environment of this process (and so of all it starts) is pointed at the demo.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.names import ENV_HOME
from dsec_blocks.model.teams import Team
from dsec_deployments import provisioning, shutdown, startup
from dsec_deployments.demo.claims import Claims
from dsec_deployments.demo.recording import Recording
from dsec_deployments.demo.venue import Venue
from dsec_deployments.installation import Installation
from dsec_deployments.prefect_api import PrefectApi

NODES = 3
GPUS_PER_NODE = 4
SLOWEST = 3.0
"""How many times longer than on an idle machine the demo goes along with; beyond that it would never end."""
POOL = "demo"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})

Tell = Callable[[str], None]


class SceneFailed(DsecError):
    """Something that a scene waited for did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A flow run that a scene made."""

    id: str
    name: str


@dataclass(kw_only=True)
class Stage:
    """What a scene works with."""

    home: Path
    venue: Venue
    installation: Installation
    prefect: PrefectApi
    ledger: Ledger
    clock: Clock
    recording: Recording
    tell: Tell
    claims: Claims = field(default_factory=Claims)
    deployments: dict[str, str] = field(default_factory=dict)
    """By name: the deployment's id."""
    runs: dict[str, Submitted] = field(default_factory=dict)
    """By name: the runs made so far."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What one scene leaves for a later one."""
    slowness: float = 1.0
    """How many times longer this machine takes at present than an idle one."""

    @property
    def pace(self) -> float:
        """How many times longer the gangs that give way work: those that follow need that long to start."""
        return self.venue.pace * self.slowness

    def go_along_with(self, reference_seconds: float) -> None:
        """The reference runs took so long. On a busy machine whoever gives way must not end before its turn."""
        if self.venue.reference_seconds is not None:
            self.slowness = min(max(reference_seconds / self.venue.reference_seconds, 1.0), SLOWEST)

    def submit(
        self,
        deployment: str,
        name: str,
        *,
        team: str = "default",
        parameters: Mapping[str, Any] | None = None,
        **job_variables: Any,
    ) -> Submitted:
        """Make a run of a deployment, due now, as the UI's button does."""
        body = {
            "name": name,
            "parameters": dict(parameters or {}),
            "job_variables": job_variables,
            "work_queue_name": team,
            "state": {"type": "SCHEDULED"},
            "idempotency_key": f"{deployment}/{name}",
        }
        path = f"deployments/{self.deployments[deployment]}/create_flow_run"
        made = self.prefect.write("POST", path, body, at="demo.run.create")
        run = Submitted(id=made["id"], name=name)
        self.runs[name] = run
        return run

    def state(self, run: Submitted) -> dict[str, Any]:
        """The run's present state in Prefect."""
        return dict(self.prefect.get(f"flow_runs/{run.id}")["state"] or {})

    def states(self, run: Submitted) -> list[dict[str, Any]]:
        """All states the run has had, oldest first."""
        found = self.prefect.get(f"flow_run_states/?flow_run_id={run.id}") or []
        return sorted(found, key=lambda state: state["timestamp"])

    def gang(self, run: Submitted) -> Gang | None:
        """The run as the ledger knows it."""
        return self.ledger.gang(run.id)

    def wait(self, what: str, reached: Callable[[], Any], *, seconds: float) -> Any:
        """The first true value of `reached()`; raises `SceneFailed` naming `what` if it does not come in time.

        `seconds` are an idle machine's of the venue of processes; others are slower.
        """
        seconds *= self.venue.patience * self.slowness
        deadline = self.clock.monotonic() + seconds
        self.tell(what)
        while True:
            value = reached()
            if value:
                return value
            if self.clock.monotonic() > deadline:
                raise SceneFailed(f"waited {seconds:.0f} s for: {what}")
            time.sleep(0.1)

    def wait_running(self, run: Submitted, *, seconds: float = 60.0) -> Gang:
        """The gang once its user code runs."""

        def running() -> Gang | None:
            gang = self.gang(run)
            if gang is not None and gang.state is GangState.ENDED:
                raise SceneFailed(f"run {run.name} ended before it was seen running: {self.state(run)}")
            return gang if gang is not None and gang.state is GangState.RUNNING else None

        found: Gang = self.wait(f"{run.name} to run", running, seconds=seconds)
        return found

    def wait_ended(self, run: Submitted, *, seconds: float = 60.0) -> dict[str, Any]:
        """The run's final state in Prefect."""

        def ended() -> dict[str, Any] | None:
            state = self.state(run)
            return state if state.get("type") in TERMINAL else None

        found: dict[str, Any] = self.wait(f"{run.name} to end", ended, seconds=seconds)
        return found


def isolate(home: Path) -> None:
    """Point this process, and all it will start, at the demo's own home and nothing else."""
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "DSEC_"))]:
        if name != "DSEC_DEBUG":
            del os.environ[name]
    os.environ[ENV_HOME] = str(home)
    os.environ["PREFECT_HOME"] = str(home / "client")
    os.environ["PREFECT_LOGGING_TO_API_BATCH_INTERVAL"] = "0.5"
    os.environ["DO_NOT_TRACK"] = "1"


@contextmanager
def stage(home: Path, venue: Venue, *, keep: bool, tell: Tell, note: Tell) -> Iterator[Stage]:
    """The demo's installation, up; brought down again whatever happens, unless `keep`."""
    clock = SystemClock()
    installation = Installation(
        pool=POOL,
        port=free_port(),
        nodes=NODES,
        gpus=GPUS_PER_NODE,
        gpu_model="H100",
        gpu_memory="80GiB",
        kubernetes=venue.kubernetes,
    )
    try:
        started = startup.bring_up(installation, progress=tell, note=note, clock=clock, with_project=False)
        assert started.installation.prefect_api_url is not None
        ledger = Ledger.open(started.installation.resolved_ledger_url(), clock=clock)
        try:
            yield Stage(
                home=home,
                venue=venue,
                installation=started.installation,
                prefect=PrefectApi(started.installation.prefect_api_url),
                ledger=ledger,
                clock=clock,
                recording=Recording(began=clock.now()),
                tell=tell,
            )
        finally:
            ledger.close()
    finally:
        if not keep:
            sweep(tell=tell, note=note)


def sweep(*, tell: Tell, note: Tell) -> None:
    """Stop whatever a demo left running."""
    from dsec_deployments import installation

    shutdown.bring_down(installation.load(), evict=False, purge=False, progress=tell, note=note)


def add_teams(stage: Stage, teams: list[Team]) -> None:
    """Ledger rows and work queues."""
    for team in teams:
        provisioning.create_queue(stage.prefect, pool=POOL, team=team)
        stage.ledger.put_team(POOL, team)


def deploy(
    stage: Stage, flow: Any, *, entrypoint: str, name: str, directory: Path | None = None, **job_variables: Any
) -> None:
    """Create a deployment of `flow` on the demo's pool; `directory` is where a file's entrypoint counts from."""
    from prefect.utilities.callables import parameter_schema

    from dsec_blocks.gang import merged_job_variables

    variables = merged_job_variables(flow, job_variables)
    made = stage.prefect.write("POST", "flows/", {"name": flow.name}, at="demo.flow.create")
    body = {
        "name": name,
        "flow_id": made["id"],
        "entrypoint": entrypoint,
        "work_pool_name": POOL,
        "job_variables": variables,
        "parameter_openapi_schema": parameter_schema(flow.fn).model_dump_for_openapi(),
        "enforce_parameter_schema": True,
        "description": flow.description,
        "pull_steps": [_working_directory(directory)] if directory else None,
    }
    stage.deployments[name] = stage.prefect.write("POST", "deployments/", body, at="demo.deployment.create")["id"]


def _working_directory(directory: Path) -> dict[str, Any]:
    return {"prefect.deployments.steps.set_working_directory": {"directory": str(directory)}}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
