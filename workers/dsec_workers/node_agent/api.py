"""The agent's HTTP interface: what is here, what is being fetched, and figures. Answers are JSON, errors one line."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.inventory import inventory
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.store import usage
from dsec_blocks.model.errors import DsecError
from dsec_workers.node_agent.access import is_right
from dsec_workers.node_agent.measuring import Measuring
from dsec_workers.node_agent.prefetching import BY_HAND, OPEN, Prefetches

Answer = Callable[[Request], Awaitable[Response]]
MOST_BYTES = 64 * 1024
"""A question that is longer is refused."""


class Wanted(BaseModel):
    """The body of POST /prefetch."""

    model_config = ConfigDict(extra="forbid")
    uri: str = Field(min_length=1)
    include: list[str] = []
    exclude: list[str] = []

    def address(self) -> BundleAddress:
        """Raises `UnknownOrigin` or `UnsafePath`."""
        address = BundleAddress.of(self.uri, include=self.include, exclude=self.exclude)
        origin_for(address.uri)
        return address


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """The routes, over one cache."""

    def __init__(
        self,
        cache: Cache,
        prefetches: Prefetches,
        measuring: Measuring,
        *,
        token: str,
        nodes: tuple[str, ...],
        metrics_are_open: bool,
        health: Callable[[], dict[str, Any]],
    ) -> None:
        self._cache = cache
        self._prefetches = prefetches
        self._measuring = measuring
        self._token = token
        self._nodes = nodes
        self._metrics_are_open = metrics_are_open
        self._health = health

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/alive", self.alive),
                Route("/ready", self.ready),
                Route("/health", self._guarded(self.health)),
                Route("/inventory", self._guarded(self.inventory)),
                Route("/metrics", self.metrics if self._metrics_are_open else self._guarded(self.metrics)),
                Route("/prefetch", self._guarded(self.begin), methods=["POST"]),
                Route("/prefetch", self._guarded(self.list), methods=["GET"]),
                Route("/prefetch/{id}", self._guarded(self.show), methods=["GET"]),
                Route("/prefetch/{id}", self._guarded(self.cancel), methods=["DELETE"]),
            ]
        )

    async def alive(self, request: Request) -> Response:
        """Asked by a kubelet, which has no token and learns nothing: an agent that stands still does not answer."""
        return JSONResponse({"ok": True})

    async def ready(self, request: Request) -> Response:
        """Whether the agent works, and no more than that; 503 while it cannot reach what it needs. Needs no token."""
        is_well = (await run_in_threadpool(self._health))["ok"]
        return JSONResponse({"ok": is_well}, status_code=200 if is_well else 503)

    async def health(self, request: Request) -> Response:
        """Whether the agent works; 503 while it cannot reach what it needs."""
        told = await run_in_threadpool(self._health)
        return JSONResponse(told, status_code=200 if told["ok"] else 503)

    async def inventory(self, request: Request) -> Response:
        """What the node holds."""
        return JSONResponse(await run_in_threadpool(self._inventory))

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""

        def text() -> bytes:
            self._measuring.step()
            return generate_latest(self._measuring.registry)

        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE_LATEST)

    async def begin(self, request: Request) -> Response:
        """Fetch a bundle ahead of need; 202 with its id."""
        raw = await request.body()
        if len(raw) > MOST_BYTES:
            raise Refused(413, f"a question of {len(raw)} bytes is too long; at most {MOST_BYTES}")
        try:
            address = Wanted.model_validate_json(raw).address()
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Refused(400, f"{where or 'body'}: {first['msg']}") from None
        except DsecError as error:
            raise Refused(400, str(error)) from None
        one = await run_in_threadpool(self._prefetches.ask, address)
        return JSONResponse(one.to_json(), status_code=202)

    async def list(self, request: Request) -> Response:
        """What is under way, and what ended lately."""
        return JSONResponse([one.to_json() for one in self._prefetches.all()])

    async def show(self, request: Request) -> Response:
        """One prefetch."""
        one = self._prefetches.get(request.path_params["id"])
        if one is None:
            raise Refused(404, f"there is no prefetch {request.path_params['id']}; GET /prefetch lists them")
        return JSONResponse(one.to_json())

    async def cancel(self, request: Request) -> Response:
        """Nobody wants it by hand any more; a run that wants it keeps it going."""
        one = self._prefetches.get(request.path_params["id"])
        if one is None:
            raise Refused(404, f"there is no prefetch {request.path_params['id']}; GET /prefetch lists them")
        if one.state in OPEN:
            await run_in_threadpool(lambda: self._prefetches.unwant(one, by=BY_HAND))
        return JSONResponse(one.to_json())

    def _inventory(self) -> dict[str, Any]:
        store = self._cache.store
        used = usage(store.layout, store.sight)
        return {
            "nodes": list(self._nodes),
            "directory": str(store.layout.root),
            "policy": store.policy,
            "capacity_bytes": store.capacity_bytes(),
            "used_bytes": used.used_bytes,
            "in_flight_bytes": used.in_flight_bytes,
            "bandwidth_bytes_per_s": self._measuring.tally.rounded_bandwidth,
            "bundles": [
                {
                    "bundle": one.bundle,
                    "addresses": list(one.addresses),
                    "size_bytes": one.size_bytes,
                    "files": one.files,
                    "whole": one.is_whole,
                    "pinned": one.is_pinned,
                    "holders": len(one.holders),
                    "checked_at": one.checked_at,
                }
                for one in inventory(store)
            ],
            "starts": self._measuring.tally.last_starts[-20:],
        }

    def _guarded(self, answer: Answer) -> Answer:
        async def guarded(request: Request) -> Response:
            try:
                if not is_right(request.headers.get("authorization"), self._token):
                    raise Refused(401, "the token is missing or wrong; send the one in DSEC_HOME/agent/token as Bearer")
                return await answer(request)
            except Refused as refused:
                return _error(refused.status, str(refused))
            except DsecError as error:
                return _error(409, str(error))
            except OSError as error:
                return _error(500, f"the cache directory refuses: {error.strerror or error}")

        return guarded


def _error(status: int, text: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(json.dumps({"error": text}), status_code=status, media_type="application/json", headers=headers)
