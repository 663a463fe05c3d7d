"""The agent as a process: put the cache in order, listen, and go its rounds until it is told to end."""

import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from dsec_blocks.cache import Cache
from dsec_blocks.gateways import files, processes
from dsec_blocks.model.errors import DsecError
from dsec_workers.http_server import HttpServer
from dsec_workers.node_agent import access
from dsec_workers.node_agent.api import Api
from dsec_workers.node_agent.measuring import Measuring
from dsec_workers.node_agent.prefetching import Prefetches, Prefetching
from dsec_workers.node_agent.rounds import Rounds
from dsec_workers.node_agent.settings import AgentSettings

STOP_SECONDS = 5.0
_STEP_SECONDS = 0.25
_log = logging.getLogger(__name__)


class AgentRuns(DsecError):
    """Another agent owns this home, or its port is taken."""

    exit_code = 3


def run(settings: AgentSettings, cache: Cache, *, note: Callable[[str], None]) -> None:
    """Be the agent until SIGTERM or SIGINT. Raises `AgentRuns`, `LocalDiskError` or `InvalidCacheSetting`."""
    files.make_directory(settings.directory)
    lock = processes.hold_lock(settings.directory / "agent.lock", blocking=False, at="agent.lock")
    if lock is None:
        running = access.living_address(settings.directory)
        where = f"at {running.url} (pid {running.process.pid})" if running else "and starts just now"
        raise AgentRuns(f"an agent of {settings.home} runs already {where}; stop it first, or set another DSEC_HOME")
    cache.store.prepare()
    listening = _listen(settings)
    anyio.run(partial(_serve, settings, cache, listening, note))


async def _serve(settings: AgentSettings, cache: Cache, listening: socket.socket, note: Callable[[str], None]) -> None:
    prefetches = Prefetches(cache, settings.directory / "prefetches", at_once=settings.fetches_at_once)
    measuring = Measuring(cache, prefetches)
    rounds = Rounds(settings=settings, cache=cache, prefetches=prefetches, measuring=measuring)

    def tell(one: Prefetching) -> None:
        measuring.ended.labels(one.state).inc()
        rounds.hurry()
        _log.info("%s: %s after %.1f s %s", one.address, one.state, one.seconds, one.error)

    token = access.own_token(settings.directory)
    api = Api(
        cache,
        prefetches,
        measuring,
        token=token,
        nodes=settings.nodes,
        metrics_are_open=settings.metrics_are_open,
        health=rounds.health,
    )
    server = HttpServer(api.app())
    prefetches.start(ended=tell)
    host, port = listening.getsockname()[:2]
    me = access.Address(url=f"http://{host}:{port}", process=processes.identify(os.getpid()), nodes=settings.nodes)
    try:
        async with anyio.create_task_group() as group:
            await group.start(_end_on_signal, server)
            access.write_address(settings.directory, me)  # who reads it may ask, and may tell it to end
            note(f"agent of {', '.join(settings.nodes)}: {me.url}, cache {cache.store.layout.root}")
            group.start_soon(_go_rounds, rounds)
            await server.serve(sockets=[listening])
            group.cancel_scope.cancel()
    finally:
        prefetches.stop(seconds=STOP_SECONDS)
        rounds.close()


async def _go_rounds(rounds: Rounds) -> None:
    while True:
        await anyio.to_thread.run_sync(rounds.step)
        await anyio.sleep(_STEP_SECONDS)


async def _end_on_signal(server: HttpServer, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            server.should_exit = True


def _listen(settings: AgentSettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AgentRuns(
            f"the agent cannot listen at {settings.host}:{settings.port} ({reason}); choose another with --host and "
            "--port, or leave --port out for any free one"
        ) from error
