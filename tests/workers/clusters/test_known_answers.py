"""What a flow process knows already it does not ask for, and what it knows is what the server would have said."""

import dataclasses
import json
from typing import Any

import httpx
import pytest

from dsec_workers.clusters.local.known_answers import (
    DEPLOYMENT_SECONDS,
    RUNNING_SECONDS,
    STORAGE_SECONDS,
    KnownAnswers,
    run_after,
)
from dsec_workers.clusters.protocol import Known
from tests.fixtures.clock import ManualClock

RUN = "0b0f3c1e-0000-4000-8000-000000000001"
PENDING = {"id": "s1", "type": "PENDING", "name": "Pending", "timestamp": "2026-01-01T00:00:01Z"}
RUNNING = {"id": "s2", "type": "RUNNING", "name": "Running", "timestamp": "2026-01-01T00:00:02Z"}
AS_READ: dict[str, Any] = {
    "id": RUN,
    "state": PENDING,
    "run_count": 0,
    "start_time": None,
    "expected_start_time": "2026-01-01T00:00:00Z",
    "empirical_policy": {"retries": None},
    "flow_version": None,
}
STORAGE = {"default_result_storage_block_id": None}


class Server:
    """A conversation: what the process asks, and what it is told if the request goes out at all."""

    def __init__(self, known: Known | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.answers = KnownAnswers(RUN, known, self.clock)

    def ask(self, method: str, path: str, body: Any = None, *, told: Any, status: int = 200) -> Any:
        request = httpx.Request(method, f"http://server/api{path}", json=body)
        found = self.answers.answer(request)
        if found is not None:
            return found
        response = None if told is None else httpx.Response(status, json=told, request=request)
        self.answers.heard(request, response)
        return told

    def get(self, path: str) -> Any:
        return self.ask("GET", path, told="from the server")

    def begins(self) -> None:
        """As Prefect's engine begins: read, write the policy down, say Running."""
        self.ask("GET", f"/flow_runs/{RUN}", told=AS_READ)
        self.ask("PATCH", f"/flow_runs/{RUN}", {"flow_version": "v1", "infrastructure_pid": "dsec:p"}, told={})
        self.runs()

    def runs(self) -> None:
        self.ask("POST", f"/flow_runs/{RUN}/set_state", {}, told={"status": "ACCEPT", "state": RUNNING}, status=201)


def known_at(clock: ManualClock, **fields: Any) -> Known:
    return Known(read_at=clock.now(), deployment={"id": "d1", "name": "mine"}, default_storage=STORAGE, **fields)


def test_the_deployment_is_taken_from_the_order_once() -> None:
    clock = ManualClock()
    server = Server(known_at(clock), clock)
    assert server.get("/deployments/d2") == "from the server"
    assert server.get("/deployments/d1") == {"id": "d1", "name": "mine"}
    assert server.get("/deployments/d1") == "from the server"


@pytest.mark.parametrize("seconds", [DEPLOYMENT_SECONDS + 1, -5.0])
def test_a_deployment_of_an_old_order_or_of_another_clock_is_asked_for(seconds: float) -> None:
    clock = ManualClock()
    known = dataclasses.replace(known_at(clock), read_at=clock.now() - seconds)
    assert Server(known, clock).get("/deployments/d1") == "from the server"


def test_a_gang_that_waits_long_at_its_barrier_reads_the_deployment_anew() -> None:
    clock = ManualClock()
    server = Server(known_at(clock), clock)
    clock.advance(DEPLOYMENT_SECONDS + 1)
    assert server.get("/deployments/d1") == "from the server"


def test_the_default_storage_is_taken_for_granted_for_a_moment_and_then_asked_for() -> None:
    server = Server()
    told = [server.ask("GET", "/admin/storage", told=STORAGE)]
    told += [server.ask("GET", "/admin/storage", told={"default_result_storage_block_id": "b2"}) for _ in range(2)]
    assert told == [STORAGE] * 3
    server.clock.advance(STORAGE_SECONDS + 1)
    assert server.get("/admin/storage") == "from the server"


def test_a_default_storage_that_the_run_itself_changes_is_asked_for_again() -> None:
    clock = ManualClock()
    server = Server(known_at(clock), clock)
    assert server.get("/admin/storage") == STORAGE
    server.ask("PUT", "/admin/storage", {"default_result_storage_block_id": "b2"}, told={})
    assert server.get("/admin/storage") == "from the server"


def test_the_run_as_it_became_running_is_told_once() -> None:
    server = Server()
    server.begins()
    run = server.get(f"/flow_runs/{RUN}")
    assert (run["state"], run["run_count"], run["start_time"]) == (RUNNING, 1, RUNNING["timestamp"])
    assert (run["flow_version"], run["infrastructure_pid"]) == ("v1", "dsec:p")
    assert server.get(f"/flow_runs/{RUN}") == "from the server"


def test_the_run_is_read_when_a_while_has_passed_since_it_became_running() -> None:
    server = Server()
    server.begins()
    server.clock.advance(RUNNING_SECONDS + 0.1)
    assert server.get(f"/flow_runs/{RUN}") == "from the server"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"name": "renamed"}),
        ("PATCH", "/labels", {"traceparent": "x"}),
        ("POST", "/set_state", {}),
        ("PATCH", "", {"flow_version": "v2", "tags": ["a"]}),
    ],
)
def test_a_run_that_is_changed_otherwise_is_read(method: str, path: str, body: Any) -> None:
    server = Server()
    server.ask("GET", f"/flow_runs/{RUN}", told=AS_READ)
    server.ask(method, f"/flow_runs/{RUN}{path}", body, told={"status": "REJECT", "state": PENDING})
    server.runs()
    assert server.get(f"/flow_runs/{RUN}") == "from the server"


def test_a_run_whose_answer_to_running_was_lost_is_read() -> None:
    server = Server()
    server.ask("GET", f"/flow_runs/{RUN}", told=AS_READ)
    server.ask("POST", f"/flow_runs/{RUN}/set_state", {}, told=None)
    server.runs()
    assert server.get(f"/flow_runs/{RUN}") == "from the server"


def test_a_run_with_hooks_of_its_own_is_read() -> None:
    server = Server()
    server.ask("GET", f"/flow_runs/{RUN}", told=AS_READ)
    server.answers.stop_following()
    server.runs()
    assert server.get(f"/flow_runs/{RUN}") == "from the server"


def test_another_run_is_always_read() -> None:
    server = Server()
    server.begins()
    assert server.get("/flow_runs/another") == "from the server"


@pytest.mark.parametrize(
    ("case", "run", "state"),
    [
        ("a retry in the process", {**AS_READ, "state": {**PENDING, "type": "SCHEDULED"}}, RUNNING),
        ("a resumption, which the server does not count", {**AS_READ, "empirical_policy": {"resuming": True}}, RUNNING),
        ("an end", AS_READ, {**RUNNING, "type": "COMPLETED"}),
    ],
)
def test_nothing_else_than_a_start_is_foretold(case: str, run: dict[str, Any], state: dict[str, Any]) -> None:
    assert run_after(run, state) is None, case


def test_what_is_foretold_is_json() -> None:
    assert json.loads(json.dumps(run_after(AS_READ, RUNNING)))["estimated_start_time_delta"] == 2.0
