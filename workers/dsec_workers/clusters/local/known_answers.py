"""Answers to what Prefect's engine is about to ask, where this process has them already.

Two come with the order: the worker read the deployment and the server's default storage a moment ago, for many runs
at once. One follows from what the server has just said: how its run looks now that it is Running. Each is given while
it is new, the deployment and the run once; whoever asks later (the user's code too) asks the server.
"""

import functools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import httpx

from dsec_blocks.model.clock import Clock
from dsec_workers.clusters.protocol import Known

DEPLOYMENT_SECONDS = 3.0
"""How old the worker's copy may be: a deployment that was changed longer ago starts as changed."""
STORAGE_SECONDS = 10.0
"""How long the default storage, which the engine asks for twice at each start, is taken for granted."""
RUNNING_SECONDS = 1.0
_STORAGE = "/admin/storage"
_FOLLOWED = frozenset({"flow_version", "empirical_policy", "infrastructure_pid"})
"""What the engine itself changes of its run before it is Running."""


class KnownAnswers:
    """What one flow process knows, as requests and answers pass by."""

    def __init__(self, run_id: str, known: Known | None, clock: Clock) -> None:
        self._clock = clock
        self._run_path = f"/flow_runs/{run_id}"
        self._run: dict[str, Any] | None = None
        """The run as it must be on the server, while that can be told."""
        self._running_since: float | None = None
        self._is_followed = True
        self._deployment: Mapping[str, Any] | None = None
        self._storage: Mapping[str, Any] | None = None
        self._storage_known_since = self._deployment_known_since = float("-inf")
        age = clock.now() - known.read_at if known is not None else -1.0
        if known is not None and age >= 0.0:  # else somebody has set the clock back
            self._deployment, self._storage = known.deployment, known.default_storage
            self._storage_known_since = self._deployment_known_since = clock.monotonic() - age

    def stop_following(self) -> None:
        """From here on the run may be changed by code that is not Prefect's."""
        self._run, self._running_since, self._is_followed = None, None, False

    def answer(self, request: httpx.Request) -> Any:
        """The answer to a request that is not sent yet, as JSON; None to send it."""
        if request.method != "GET":
            return None
        path = request.url.path
        found: Mapping[str, Any] | None = None
        if path.endswith(self._run_path) and self._running_since is not None:
            if self._is_new(self._running_since, RUNNING_SECONDS):
                found = self._run
            self.stop_following()
        elif self._deployment is not None and path.endswith(f"/deployments/{self._deployment['id']}"):
            if self._is_new(self._deployment_known_since, DEPLOYMENT_SECONDS):
                found = self._deployment
            self._deployment = None
        elif path.endswith(_STORAGE) and self._is_new(self._storage_known_since, STORAGE_SECONDS):
            found = self._storage
        return found

    def heard(self, request: httpx.Request, response: httpx.Response | None) -> None:
        """What the server said; None is an answer that was lost, after which anything may be true."""
        path = request.url.path
        if path.endswith(_STORAGE):
            is_told = request.method == "GET" and response is not None and response.is_success
            self._storage = response.json() if response is not None and is_told else None
            self._storage_known_since = self._clock.monotonic()
        elif self._is_followed and self._run_path in path:
            self._follow(request, response)

    def _follow(self, request: httpx.Request, response: httpx.Response | None) -> None:
        verb = request.url.path.rpartition(self._run_path)[2]
        if response is None or not response.is_success:
            self.stop_following()
        elif request.method == "GET":
            if not verb:
                self._run = response.json()
        elif request.method == "PATCH" and not verb and self._run is not None:
            changes = json.loads(request.content)
            if _FOLLOWED.issuperset(changes):
                self._run = {**self._run, **changes}
            else:
                self.stop_following()
        elif verb == "/set_state":
            self._moved(response.json())
        else:
            self.stop_following()

    def _moved(self, answer: Mapping[str, Any]) -> None:
        run, self._run = self._run, None
        if run is not None and answer["status"] == "ACCEPT":
            self._run = run_after(run, answer["state"])
        if self._run is None:
            self.stop_following()
        else:
            self._running_since = self._clock.monotonic()

    def _is_new(self, since: float, seconds: float) -> bool:
        return self._clock.monotonic() - since <= seconds


def run_after(run: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run as the server shows it after `state` was accepted; only Pending → Running is understood. Pure."""
    before = run.get("state") or {}
    if before.get("type") != "PENDING" or state["type"] != "RUNNING":
        return None
    if (run.get("empirical_policy") or {}).get("resuming"):  # a resumption is not counted
        return None
    start, expected = run.get("start_time") or state["timestamp"], run.get("expected_start_time")
    late = (datetime.fromisoformat(start) - datetime.fromisoformat(expected)).total_seconds() if expected else 0.0
    return {
        **run,
        "state": state,
        "state_id": state["id"],
        "state_type": state["type"],
        "state_name": state["name"],
        "run_count": (run.get("run_count") or 0) + 1,
        "start_time": start,
        "estimated_start_time_delta": max(0.0, late),
        "next_scheduled_start_time": None,
        "updated": state["timestamp"],
    }


def listen_in(known: KnownAnswers) -> None:
    """Have Prefect's clients in this process ask `known` first, and tell it what the server answers."""
    from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

    send, send_async = PrefectHttpxSyncClient.send, PrefectHttpxAsyncClient.send

    @functools.wraps(send)
    def ask(self: Any, request: httpx.Request, *args: Any, **options: Any) -> httpx.Response:
        found = known.answer(request)
        if found is not None:
            return httpx.Response(200, json=found, request=request)
        response = None
        try:
            response = send(self, request, *args, **options)
            return response
        finally:
            known.heard(request, response)

    @functools.wraps(send_async)
    async def ask_async(self: Any, request: httpx.Request, *args: Any, **options: Any) -> httpx.Response:
        found = known.answer(request)
        if found is not None:
            return httpx.Response(200, json=found, request=request)
        response = None
        try:
            response = await send_async(self, request, *args, **options)
            return response
        finally:
            known.heard(request, response)

    PrefectHttpxSyncClient.send = ask  # type: ignore[method-assign]
    PrefectHttpxAsyncClient.send = ask_async  # type: ignore[method-assign]
