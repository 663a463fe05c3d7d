"""Prefect's engine with fewer requests: what it asks for a run of a second is asked once, later, or more cheaply.

On a pool where many short runs share one server, these requests are most of what a run costs, and two of them stand
between its Pending and its first line. A run that lasts misses nothing of it.
"""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

FIRST_HEARTBEAT_SECONDS = 5.0
SUSPENSION_SECONDS = 5.0
"""From when on a run looks for its suspension: it then asks for its state first, so that none is missed."""


def make_lean(run_id: UUID, infrastructure_pid: str | None) -> None:
    """Change the engine of this process, which is about to run `run_id` and nothing else."""
    from prefect import flow_engine
    from prefect.deployments.steps import core

    engine, steps = vars(flow_engine), vars(core)
    engine["_send_heartbeats"] = functools.partial(late_heartbeats, engine["_send_heartbeats"])
    engine["observe_flow_run_suspension"] = functools.partial(late_watch, engine["observe_flow_run_suspension"])
    steps["get_events_client"] = functools.partial(events_by_request, steps["get_events_client"])
    if infrastructure_pid is not None:
        name_the_infrastructure(run_id, infrastructure_pid)


@contextlib.contextmanager
def late_heartbeats(
    send: Callable[..., contextlib.AbstractContextManager[None]], engine: Any, join_on_exit: bool = True
) -> Iterator[None]:
    """Prefect's heartbeats, from `FIRST_HEARTBEAT_SECONDS` on; a flow's end never waits for their thread.

    The first one costs a WebSocket and half a dozen requests for what the run is related to, more than all else that
    a short run asks of the server. Whether the process lives is known from the supervisor anyway. The thread is a
    daemon that sleeps in steps of a second; async flows do not wait for it in Prefect either.
    """
    with _later("dsec-heartbeats", FIRST_HEARTBEAT_SECONDS, lambda: send(engine, join_on_exit=False)):
        yield


@contextlib.contextmanager
def late_watch(
    observe: Callable[..., contextlib.AbstractContextManager[None]], *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Prefect's watch for a suspension from outside, from `SUSPENSION_SECONDS` on.

    It costs a WebSocket and a read, and the engine waits for both before it says Running.
    """
    with _later("dsec-suspension", SUSPENSION_SECONDS, lambda: observe(*args, **kwargs)):
        yield


@contextlib.contextmanager
def _later(name: str, seconds: float, work: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Enter `work` in a thread of its own once `seconds` have passed inside, and leave it at the end."""
    over = threading.Event()

    def run() -> None:
        if not over.wait(seconds):
            with work():
                over.wait()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def events_by_request(open_client: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Prefect's events client for the single events of pull steps, without the WebSocket where a request will do."""
    from prefect.events.clients import PrefectEventsClient

    client = open_client(*args, **kwargs)
    return _EventRequests() if type(client) is PrefectEventsClient else client


class _EventRequests:
    """An events client that posts each event on the connection that the run has already."""

    async def __aenter__(self) -> "_EventRequests":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def emit(self, event: Any) -> None:
        from prefect.client.orchestration import get_client

        client: Any = get_client(sync_client=True)
        client._client.post("/events", json=[event.model_dump(mode="json")])


def name_the_infrastructure(run_id: UUID, pid: str) -> None:
    """Have the request with which the engine updates its run say where it runs, so that the claim need not."""
    from prefect.client.orchestration import PrefectClient, SyncPrefectClient

    for client in (PrefectClient, SyncPrefectClient):
        send: Callable[..., Any] = client.update_flow_run

        @functools.wraps(send)
        def update(self: Any, flow_run_id: UUID, *args: Any, send: Callable[..., Any] = send, **fields: Any) -> Any:
            if flow_run_id == run_id and not args:
                fields.setdefault("infrastructure_pid", pid)
            return send(self, flow_run_id, *args, **fields)

        client.update_flow_run = update  # type: ignore[method-assign]
