"""The Prefect worker type `dsec-gang`.

From `BaseWorker` come registration, heartbeat, the work pool's template and `prefect worker start -p POOL`. The poll
loop, the claim and the launch are ours (`dsec_workers.lifecycle`): the stock loop ends the worker, and with it every
run, when the API fails a few times, and it starts whatever it finds.
"""

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import InfrastructureNotFound
from prefect.types._datetime import now as prefect_now
from prefect.workers.base import BaseWorker, BaseWorkerResult
from prometheus_client import CollectorRegistry

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import DsecError, TooNew
from dsec_blocks.model.gangs import HOLDING_STATES
from dsec_blocks.model.names import ENV_HOME, WORKER_TYPE
from dsec_workers.clusters.local.layout import GangDirectory
from dsec_workers.clusters.opening import open_cluster
from dsec_workers.clusters.protocol import Cluster, GangKey
from dsec_workers.exit_deadline import exit_within
from dsec_workers.form import GangJobConfiguration, GangVariables, default_template
from dsec_workers.garbage_collection import look_at_what_is_new
from dsec_workers.lifecycle.claims import attempt_of
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.lifecycle.planning import Planner
from dsec_workers.lifecycle.start_answers import StartAnswers
from dsec_workers.lifecycle.term import LaunchSettings, Term, nothing_known
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api import Run
from dsec_workers.prefect_api.gateway import no_client_retries
from dsec_workers.prefect_api.measured import MeasuredApi
from dsec_workers.scheduling.policy import Policy
from dsec_workers.settings import KUBERNETES, LOCAL, WorkerSettings

MEMBER_CLIENT_RETRIES = "9"
"""Of a member's Prefect client, with doubling pauses: about 17 minutes, so that an outage of 15 loses no state."""
SYNC_RETRY_SECONDS = 5.0


class GangWorkerResult(BaseWorkerResult):
    """Required by `BaseWorker`; nothing here returns one, since the ledger says how a gang ended."""


class GangWorker(BaseWorker[GangJobConfiguration, GangVariables, GangWorkerResult]):
    """Starts gangs of flow runs on a pool of GPUs: all members of a run or none, the urgent before the patient."""

    type = WORKER_TYPE
    job_configuration = GangJobConfiguration
    job_configuration_variables = GangVariables

    _display_name = "DSec gang"
    _description = (
        "Run flows on a shared pool of GPUs. A run waits until all the GPUs it asks for are free at once, gives way "
        "to more urgent runs by checkpointing, and resumes by itself."
    )
    _documentation_url = "https://github.com/dsec/dsec"
    _logo_url = "https://raw.githubusercontent.com/PrefectHQ/prefect/main/docs/logos/kubernetes.svg"

    leading: Leading | None = None
    _cluster: Cluster | None = None

    @cached_property
    def _answers(self) -> StartAnswers:
        return StartAnswers()

    @classmethod
    def get_default_base_job_template(cls) -> dict[str, Any]:
        """The form, with a note of what was shipped so that a later upgrade can keep the user's edits."""
        return default_template()

    async def start(
        self, run_once: bool = False, with_healthcheck: bool = False, printer: Callable[..., None] = print
    ) -> None:
        """Serve the pool until SIGTERM or SIGINT; gangs run on after that, unless `DSEC_DRAIN=evict`.

        What keeps it from serving ends the process with one line.
        """
        try:
            await self._start(run_once=run_once, printer=printer)
        except DsecError as error:
            print(f"Worker {self.name!r} ends: {error}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code) from None

    async def _start(self, *, run_once: bool, printer: Callable[..., None]) -> None:
        settings = WorkerSettings.from_environment()
        settings.home.mkdir(parents=True, exist_ok=True)
        ledger = await anyio.to_thread.run_sync(lambda: Ledger.open(settings.ledger_url, clock=SystemClock()))
        drain, clock, metrics = anyio.Event(), SystemClock(), WorkerMetrics(self._work_pool_name)
        asked_at: list[float] = []

        def leave() -> None:
            asked_at.append(clock.monotonic())
            if not (settings.evict_on_drain or drain.is_set()):
                exit_within()
            drain.set()

        look_at_what_is_new()
        try:
            with no_client_retries(), _on_signals(leave):
                self._cluster = await self._opened(settings, metrics.registry)
                try:
                    async with self:
                        await self._serve(settings, ledger, drain, metrics, run_once=run_once, printer=printer)
                finally:
                    await self._cluster.close()
        finally:
            ledger.close()
        took = f" {clock.monotonic() - asked_at[0]:.1f} s after it was asked to" if asked_at else ""
        printer(f"Worker {self.name!r} stopped{took}!")

    async def _opened(self, settings: WorkerSettings, registry: CollectorRegistry) -> Cluster:
        return await open_cluster(settings, pool=self._work_pool_name, registry=registry)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: GangJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> GangWorkerResult:
        """Refused: a run reaches its GPUs only through the queue."""
        raise NotImplementedError(
            f"flow run {flow_run.id}: a {WORKER_TYPE} pool starts runs through its queue; deploy the flow and run the "
            "deployment"
        )

    async def kill_infrastructure(
        self, infrastructure_pid: str, configuration: GangJobConfiguration, grace_seconds: int = 30
    ) -> None:
        """Stop the gang that `infrastructure_pid` names. Called by the server after a cancellation timed out.

        The grace is the one that the run asked for: it is honoured whole, whoever wants the gang to stop.
        """
        named = attempt_of(infrastructure_pid)
        leading = self.leading
        if named is None or leading is None:
            raise InfrastructureNotFound(f"{infrastructure_pid} is not a gang of pool {self._work_pool_name}")
        _, run_id, attempt = named
        gang = await anyio.to_thread.run_sync(leading.ledger.gang, run_id)
        if gang is None or gang.attempt != attempt or gang.state not in HOLDING_STATES:
            raise InfrastructureNotFound(f"attempt {attempt} of run {run_id} is over")
        await leading.cluster.stop(GangKey(run_id, attempt), gang.request.grace_seconds)

    async def launch_settings(self, intake: Intake, term: Term, run: Run) -> LaunchSettings:
        """How the run's process is to be started: its job variables, and what Prefect wants in its environment."""
        configuration = await intake.configuration(term, run)
        own = dict(configuration.env)
        deployment = await intake.deployments.of(term, run)
        configuration.prepare_for_flow_run(
            FlowRun.model_validate(run.raw),
            deployment=DeploymentResponse.model_validate(deployment.raw) if deployment else None,
            work_pool=self._work_pool,
            worker_name=self.name,
            worker_id=self.backend_id,
        )
        retries = own.get(_RETRIES) or os.environ.get(_RETRIES) or MEMBER_CLIENT_RETRIES
        asked = {name: value for name, value in configuration.env.items() if value is not None}
        if term.settings.cluster == KUBERNETES:  # a container has an environment and paths of its own
            inherited, home = {}, {}
            asked = {name: value for name, value in asked.items() if name in own or name not in _OF_THIS_MACHINE}
        else:
            inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
            home = {ENV_HOME: str(term.settings.home)}  # the default checkpoint store is there, for every attempt
        env = {**self._known_of_the_server(), **inherited, **home, **asked, _RETRIES: retries}
        is_forked = term.settings.cluster == LOCAL and configuration.own_command is None
        return LaunchSettings(
            env=env,
            name=configuration.name or run.name,
            command=configuration.own_command,
            working_dir=configuration.working_dir,
            job_manifest=configuration.job_manifest,
            labels=configuration.labels,
            known=partial(self._answers.of, intake, term, run) if is_forked else nothing_known,
        )

    def _known_of_the_server(self) -> dict[str, str]:
        """What this worker's own client has found out, so that no flow process asks again at each start."""
        known = {"PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false"}
        if not getattr(self.client._client, "enable_csrf_support", True):
            known["PREFECT_CLIENT_CSRF_SUPPORT_ENABLED"] = "false"
        return known

    async def _serve(
        self,
        settings: WorkerSettings,
        ledger: Ledger,
        drain: anyio.Event,
        metrics: WorkerMetrics,
        *,
        run_once: bool,
        printer: Callable[..., None],
    ) -> None:
        assert self._cluster is not None
        answer = _answering(settings)
        ledger.observe = metrics.ledger
        self.leading = Leading(
            pool=self._work_pool_name,
            settings=settings,
            clock=SystemClock(),
            ledger=ledger,
            api=MeasuredApi(self.client, metrics, clock=SystemClock()),
            client=self.client,
            cluster=self._cluster,
            plan=_planner(metrics),
            metrics=metrics,
            policy=Policy(),
            launch_settings=self.launch_settings,
            pool_id=lambda: str(self._work_pool.id) if self._work_pool is not None else None,
            log=self._logger,
            drain=drain,
            polled=self._polled,
            logs_of=(lambda key: GangDirectory.of(settings.home, key).path) if settings.cluster == LOCAL else None,
        )
        self._started_event = await self._emit_worker_started_event()
        printer(f"Worker {self.name!r} started!")
        if run_once:
            await self.leading.once()
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._stay_in_touch)
            if answer is not None:
                group.start_soon(answer, self.leading)
            refused: TooNew | None = None
            try:
                await self.leading.serve()
            except TooNew as error:  # raised below: a task group would wrap it up
                refused = error
            group.cancel_scope.cancel()
        if refused is not None:
            raise refused
        if self.leading.loop is not None and self.leading.loop.api_away:
            # Prefect would try for ten seconds to tell a server that does not answer that this worker has stopped.
            self._started_event = None

    async def _stay_in_touch(self) -> None:
        """Heartbeat and work pool, for ever; what fails is tried again."""
        while True:
            pause = float(self.heartbeat_interval_seconds)
            try:
                await self._sync_and_initialize()
            except (httpx.HTTPError, OSError) as error:
                self._logger.debug("no heartbeat: %s", error)
                pause = SYNC_RETRY_SECONDS
            except Exception:
                self._logger.exception("the heartbeat failed and will be tried again")
                pause = SYNC_RETRY_SECONDS
            await anyio.sleep(pause)

    def _polled(self) -> None:
        self._last_polled_time = prefect_now("UTC")


_RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
_NOT_INHERITED = ("DSEC_", "PREFECT__")
_OF_THIS_MACHINE = ("PREFECT_HOME", "PREFECT_PROFILES_PATH", "PREFECT_LOCAL_STORAGE_PATH", "PREFECT_MEMO_STORE_PATH")


@contextmanager
def _on_signals(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` on SIGTERM and SIGINT, instead of what Prefect's command line does with them."""
    import asyncio

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {}
    try:
        for number in numbers:
            previous[number] = signal.getsignal(number)
            loop.add_signal_handler(number, act)
    except (RuntimeError, ValueError, NotImplementedError):
        # Not on the main thread: somebody else owns the signals.
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)


def _answering(settings: WorkerSettings) -> Callable[[Leading], Coroutine[Any, Any, None]] | None:
    if settings.metrics_port is None:
        return None
    from dsec_workers.worker_api import listen, serve

    return partial(serve, listen(settings))


def _planner(metrics: WorkerMetrics) -> Planner:
    from dsec_workers.scheduling.cycle import plan

    return metrics.timing(plan, SystemClock())
