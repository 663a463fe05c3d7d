"""The worker's HTTP interface: is it alive, can it do its part, and figures. Read-only, so it asks for no token.

It is answered by the loop's own thread: a worker whose event loop stands still does not answer, which is the answer.
"""

import json
import socket
from typing import Any

import anyio
import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.http_server import HttpServer
from dsec_workers.lifecycle.health import hangs, hinders, told
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.lifecycle.pool_metrics import PoolMetrics
from dsec_workers.settings import WorkerSettings


class WorkerApi:
    """The routes, over one worker."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._limiter = anyio.CapacityLimiter(1)
        self._pool_metrics = PoolMetrics(
            pool=leading.pool,
            ledger=leading.ledger,
            clock=leading.clock,
            gangs=lambda: leading.loop.term.gangs if leading.fence is not None and leading.loop is not None else None,
            model_weights=lambda: leading.loop.planning.policy.model_weights if leading.loop is not None else {},
        )
        leading.metrics.registry.register(self._pool_metrics)

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/ready", self.ready),
                Route("/metrics", self.metrics),
            ]
        )

    async def health(self, request: Request) -> Response:
        """Whether the worker is alive; 503 where only a restart helps."""
        turns = self._leading.turns
        return self._answer([*hangs(turns.ages(), turns.needed), *self._leading.cluster.health().hangs])

    async def ready(self, request: Request) -> Response:
        """Whether the worker can lead or stand by; 503 with the reasons while it cannot."""
        return self._answer(hinders(self._leading.standing))

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        await self._pool_metrics.refresh()
        # In a thread: thousands of samples as text would hold the loop up.
        text = await anyio.to_thread.run_sync(generate_latest, self._leading.metrics.registry, limiter=self._limiter)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _answer(self, reasons: list[str]) -> Response:
        body: dict[str, Any] = told(self._leading.standing, self._leading.turns.ages(), reasons)
        return Response(json.dumps(body), status_code=503 if reasons else 200, media_type="application/json")


def listen(settings: WorkerSettings) -> socket.socket:
    """The socket that the settings name. Raises `InvalidRequest` if it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.metrics_host else socket.AF_INET
    try:
        return socket.create_server((settings.metrics_host, settings.metrics_port or 0), family=family)
    except OSError as error:
        raise InvalidRequest(
            f"DSEC_METRICS_PORT: the worker cannot listen at {settings.metrics_host}:{settings.metrics_port} "
            f"({error.strerror or error}); give each worker of a machine its own port, 0 for any free one, or none"
        ) from error


async def serve(listening: socket.socket, leading: Leading) -> None:
    """Answer until cancelled. Raises nothing: a worker that cannot be watched still works."""
    host, port = listening.getsockname()[:2]
    leading.log.info("health and metrics at http://%s:%d", host, port)
    try:
        await HttpServer(WorkerApi(leading).app()).serve_until_cancelled(listening)
    except Exception:
        leading.log.exception("health and metrics are not answered any more")
