"""The flow process: forked with Prefect already imported, it becomes the run's own Python in a fraction of a second.

It does what `python -m prefect.engine` does, with three differences. Everything that reads the environment is rebuilt
from the order's environment, because the fork-server's is somebody else's. User code is not even imported before the
gang's start barrier opens. And SIGTERM carries the supervisor's intent: an evicted run must leave its Prefect state
alone (the worker writes it once the gang is gone), which in Prefect only `flow-run execute` can ask for.
"""

import functools
import inspect
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from dsec_blocks.gang import check_admitted
from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import Evicted, GangMismatch
from dsec_blocks.model.names import ENV_INFRASTRUCTURE, ENV_NEVER_STARTED
from dsec_workers.clusters.local import lean_engine, warmth
from dsec_workers.clusters.local.first_logs import kept_back
from dsec_workers.clusters.local.known_answers import KnownAnswers, listen_in
from dsec_workers.clusters.protocol import EXIT_OVERTAKEN, LaunchOrder

EXIT_NOT_LET_IN = 74
"""The start barrier never opened: no user code has run."""
_ORPHAN_GRACE_SECONDS = 5.0
LONG_WAIT_SECONDS = 1.0
"""What a run was before a longer wait at the start barrier is asked again: its user may have ended it meanwhile."""


class Control:
    """The flow process's private line to its supervisor: the barrier, and what a coming SIGTERM will mean."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")
        self._on_intent: Callable[[str | None], None] = lambda _: None

    def wait_for_start(self) -> bool:
        """Block until every member holds its devices; False when the gang is not to start any more."""
        for line in self._lines:
            message = json.loads(line)
            if message["op"] == "go":
                return True
            self._apply(message)
        return False

    def follow(self, on_intent: Callable[[str | None], None]) -> None:
        """From now on, have every intent applied by a background thread, and acknowledged once it is."""
        self._on_intent = on_intent
        threading.Thread(target=self._serve, name="dsec-supervisor-intent", daemon=True).start()

    def _serve(self) -> None:
        try:
            for line in self._lines:
                self._apply(json.loads(line))
        except (OSError, ValueError):
            pass
        # The supervisor is dead: nobody enforces a deadline any more and the devices are going away.
        self._on_intent("relinquish")
        own = processes.identify(os.getpid())
        processes.signal_process(own, signal.SIGTERM, at="flow.orphaned.term")
        threading.Event().wait(_ORPHAN_GRACE_SECONDS)
        processes.signal_process(own, signal.SIGKILL, at="flow.orphaned.kill")

    def _apply(self, message: dict[str, Any]) -> None:
        if message["op"] == "intent":
            self._on_intent(message["intent"])
            self._connection.sendall(b'{"op":"intent"}\n')


def run_command(order: LaunchOrder, control: Control) -> int:
    """Wait for the barrier, then become the order's shell command."""
    if not control.wait_for_start():
        return EXIT_NOT_LET_IN
    processes.execute(["/bin/sh", "-c", order.command or ""], os.environ, at="flow.exec")
    raise AssertionError("execute returned")


def run_engine(order: LaunchOrder, control: Control) -> int:
    """Run the flow run as Prefect's own engine would; returns or raises `SystemExit` with its exit code."""
    warmth.rebuild_prefect_context()
    from prefect._internal.control_listener import configure_from_env
    from prefect._internal.metrics import RunMetrics
    from prefect.context import SyncClientContext
    from prefect.engine import _drive_run_flow_result, handle_engine_signals
    from prefect.flow_engine import load_flow, load_flow_run, run_flow
    from prefect.logging.loggers import flow_run_logger

    sys.argv = ["dsec-flow", order.key.run_id]
    run_id = UUID(order.key.run_id)
    clock = SystemClock()
    answers = KnownAnswers(order.key.run_id, order.known, clock)
    listen_in(answers)
    lean_engine.make_lean(run_id, os.environ.get(ENV_INFRASTRUCTURE))
    configure_from_env()
    # One client for loading and running: each client of its own costs a TLS context and a connection.
    with handle_engine_signals(run_id), SyncClientContext.get_or_create() as requests, kept_back(requests.client):
        flow_run = load_flow_run(flow_run_id=run_id)
        logger = flow_run_logger(flow_run=flow_run)
        began = clock.monotonic()
        if not control.wait_for_start():
            return EXIT_NOT_LET_IN
        if clock.monotonic() - began > LONG_WAIT_SECONDS:
            flow_run = load_flow_run(flow_run_id=run_id)
        if is_overtaken(flow_run, os.environ):
            return EXIT_OVERTAKEN
        control.follow(_set_intent)
        try:
            flow = load_flow(flow_run)
        except Exception:
            logger.error("Unexpected exception encountered when trying to load flow", exc_info=True)
            raise
        if flow.on_running_hooks:
            answers.stop_following()
        if is_another_gang(flow, requests.client, flow_run, logger):
            return 1
        let_evictions_leave_quietly(flow)
        with RunMetrics(flow_run, flow):
            _drive_run_flow_result(flow, run_flow(flow, flow_run=flow_run, error_logger=logger))  # type: ignore[arg-type]
    return 0


def is_overtaken(flow_run: Any, env: Mapping[str, str]) -> bool:
    """Whether somebody has ended the run around its claim, so that its user code must not run.

    The server lets Pending replace a Completed or Failed of that very moment. It leaves a trace: a run that is ended
    before it ever ran is given a start time. (The engine would not ask: it forces Running.)
    """
    if flow_run.state is None or not flow_run.state.is_pending():
        return True
    return bool(env.get(ENV_NEVER_STARTED)) and flow_run.start_time is not None


def is_another_gang(flow: Any, client: Any, flow_run: Any, logger: Any) -> bool:
    """Whether the flow's `@gang` differs from what was admitted; the run has then failed with that.

    Failed is written from here: raised in the flow it would be retried, and no retry changes what was admitted.
    """
    from prefect.states import Failed

    try:
        check_admitted(flow, os.environ)
    except GangMismatch as mismatch:
        logger.error("%s", mismatch)
        client.set_flow_run_state(flow_run.id, Failed(message=str(mismatch)))
        return True
    return False


def let_evictions_leave_quietly(flow: Any) -> None:
    """Turn an `Evicted` that leaves the flow function into what Prefect takes for a supervised termination.

    As any other `BaseException` it would be forced to Crashed, over whatever state the run has.
    """
    if flow.isgenerator:
        return
    body = flow.fn

    if inspect.iscoroutinefunction(body):

        @functools.wraps(body)
        async def leaving(*args: Any, **kwargs: Any) -> Any:
            try:
                return await body(*args, **kwargs)
            except Evicted as evicted:
                raise _termination() from evicted

    else:

        @functools.wraps(body)
        def leaving(*args: Any, **kwargs: Any) -> Any:
            try:
                return body(*args, **kwargs)
            except Evicted as evicted:
                raise _termination() from evicted

    flow.fn = leaving


def enter(working_dir: Path) -> None:
    """Work in `working_dir`, and find modules there first, as `python -m` does."""
    os.chdir(working_dir)
    here = str(working_dir)
    sys.path[:] = [here, *(entry for entry in _python_path() if entry not in sys.path), *sys.path]


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _termination() -> BaseException:
    from prefect._internal.control_listener import get_intent
    from prefect.exceptions import TerminationSignal

    if get_intent() is None:
        _set_intent("relinquish")
    return TerminationSignal(signal.SIGTERM)


def _set_intent(intent: str | None) -> None:
    from prefect._internal import control_listener

    if intent is None:
        control_listener.clear_intent()
    else:
        control_listener._set_intent(intent)  # type: ignore[arg-type]
