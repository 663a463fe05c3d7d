"""What a process does more slowly the first time, done once in the fork-server for all that are forked from it.

Python compiles patterns, pydantic builds validators, and libraries import the last of their modules on first use; in a
flow process, which lives for half a second, everything is a first use. So the fork-server goes through the motions of
a run: requests that a canned server answers, a line on a console that nobody sees, a flow that does nothing. None of
it starts a thread or opens a socket, and nothing of it is kept.
"""

import asyncio
import io
import json
import logging
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx

_ID = "00000000-0000-4000-8000-000000000000"
_STATE = {"id": _ID, "type": "RUNNING", "name": "Running", "timestamp": "2026-01-01T00:00:00Z", "state_details": {}}
_RUN = {"id": _ID, "flow_id": _ID, "name": "rehearsal", "state": _STATE, "created": "2026-01-01T00:00:00Z"}
_ANSWERS: dict[str, dict[str, Any]] = {
    "GET": {
        "flow_runs": _RUN,
        "deployments": {"id": _ID, "flow_id": _ID, "name": "rehearsal"},
        "csrf-token": {"token": "rehearsal", "client": _ID, "expiration": "2126-01-01T00:00:00Z"},
    },
    "POST": {"flow_runs": {"status": "ACCEPT", "details": {"type": "accept_details"}, "state": _STATE}},
}


def rehearse() -> None:
    """Go through the motions. What fails here (with another Prefect, say) is slow on its first use, that is all."""
    for part in PARTS:
        with suppress(Exception):
            part()


def complete_models() -> None:
    """Build the validators of all of Prefect's models, which pydantic puts off until each is first used.

    All take a tenth of a second together; those that a run uses took a sixth of its own time.
    """
    import pydantic

    waiting: list[type[pydantic.BaseModel]] = [pydantic.BaseModel]
    while waiting:
        model = waiting.pop()
        waiting += model.__subclasses__()
        if not model.__pydantic_complete__:
            with suppress(Exception):  # one that cannot be built now is built, or refused, when it is used
                model.model_rebuild(raise_errors=False)


def _answer(request: httpx.Request) -> httpx.Response:
    kind = request.url.path.removeprefix("/api/").split("/")[0]
    return httpx.Response(200, json=_ANSWERS.get(request.method, {}).get(kind))


async def _answer_async(request: httpx.Request) -> httpx.Response:
    return _answer(request)


def _speak() -> None:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.states import Completed, Running

    settings = {"transport": httpx.MockTransport(_answer)}
    with SyncPrefectClient("http://rehearsal.invalid/api", httpx_settings=settings) as client:
        run = client.read_flow_run(UUID(_ID))
        client.update_flow_run(run.id, flow_version="1", empirical_policy=run.empirical_policy)
        client.set_flow_run_state(run.id, Running())
        client.set_flow_run_state(run.id, Completed(message="All states completed."))


def _speak_async() -> None:
    async def speak() -> None:
        from prefect.client.orchestration import PrefectClient

        settings = {"transport": httpx.MockTransport(_answer_async)}
        async with PrefectClient("http://rehearsal.invalid/api", httpx_settings=settings) as client:
            await client.read_deployment(UUID(_ID))
            await client.request("POST", "/logs/", content=b"[]", headers={"Content-Type": "application/json"})

    asyncio.run(speak())


def _log() -> None:
    from prefect.events.schemas.events import Event, RelatedResource, Resource
    from prefect.logging.formatters import PrefectFormatter
    from prefect.logging.handlers import PrefectConsoleHandler

    handler = PrefectConsoleHandler(stream=io.StringIO())
    handler.setFormatter(PrefectFormatter(format="%(asctime)s.%(msecs)03d | %(levelname)-7s | %(name)s - %(message)s"))
    handler.emit(logging.LogRecord("prefect.flow_runs", logging.INFO, "", 0, "Beginning flow run 'x'", None, None))
    resource: Any = {"prefect.resource.id": "prefect.flow-run.x"}
    related: Any = {"prefect.resource.id": "prefect.deployment.x", "prefect.resource.role": "deployment"}
    event = Event(event="rehearsal", resource=Resource(resource), related=[RelatedResource(related)], payload={})
    json.dumps(event.model_dump(mode="json"))


def _define_a_flow() -> None:
    from prefect import flow

    @flow
    def rehearsal(name: str = "nobody") -> None:
        """Do nothing."""

    rehearsal.validate_parameters({"name": "somebody"})


PARTS = (complete_models, _speak, _speak_async, _log, _define_a_flow)
