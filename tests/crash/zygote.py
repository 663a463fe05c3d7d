"""A process that has Prefect and the worker imported, and forks workers and fork-servers for the crash suite.

Most cases restart a worker two or three times, and a Python with Prefect imported costs seconds of processor each
time. What is forked here runs the same code from the same entry (`GangWorker.start`, `forkserver.serve`) in a process,
session and environment of its own; `DSEC_CRASH_REAL=1` starts everything by its command line instead.

    python -m tests.crash.zygote SOCKET     one JSON request a connection: {"kind", "env", "log", "argument"} → {"pid"}
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

CLOCK_SHIFT = "DSEC_CRASH_CLOCK_SHIFT"
"""Seconds by which this worker's wall clock is wrong."""


def main(path: str) -> None:
    """Serve until the one who started us closes our stdin (or dies)."""
    _import_what_children_need()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: no zombies
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        request = json.loads(connection.makefile("r").readline() or "{}")
        if request.get("kind") == "exit" or not request:
            return
        pid = os.fork()
        if pid == 0:
            listener.close()
            _be(request, connection)
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        connection.close()


def _import_what_children_need() -> None:
    import prefect.deployments.steps.core
    import prefect.engine
    import prefect.flow_engine
    import prefect.main
    import prefect.task_engine  # noqa: F401

    import dsec_workers.gang_worker
    import dsec_workers.lifecycle.leading
    import dsec_workers.scheduling.cycle  # noqa: F401
    from dsec_workers.clusters.local import forkserver  # noqa: F401


def _be(request: dict[str, Any], connection: socket.socket) -> None:
    from dsec_workers.clusters.local import children

    code = 1
    try:
        connection.close()
        children.stand_apart(log=Path(request["log"]), keep=[], new_session=True)
        children.take_environment(request["env"])
        _rebuild_prefect()
        if request["kind"] in ("fork-server", "old"):
            from dsec_workers.clusters.local import forkserver

            if request["kind"] == "old":
                forkserver.fingerprint = lambda: "code of last week"
            forkserver.serve(Path(request["argument"]))
        else:
            _be_a_worker(request["argument"])
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _rebuild_prefect() -> None:
    """Settings and logging are this process's own, not those of the zygote."""
    import prefect.context
    from prefect.logging.configuration import setup_logging

    prefect.context.refresh_global_settings_context()
    setup_logging(incremental=False)


def _be_a_worker(pool: str) -> None:
    import anyio

    from dsec_workers.gang_worker import GangWorker

    _shift_the_clock(float(os.environ.get(CLOCK_SHIFT) or 0.0))
    worker = GangWorker(work_pool_name=pool)
    anyio.run(worker.start)


def _shift_the_clock(seconds: float) -> None:
    import time

    from dsec_blocks.gateways.clock import SystemClock

    if seconds:
        SystemClock.now = lambda _: time.time() + seconds  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1])
