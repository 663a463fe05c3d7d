"""A real worker says how it is, and what happened."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsec_blocks.model.gangs import GangState
from tests.fixtures.ports import free_port
from tests.fixtures.prefect import PrefectServer
from tests.integration.outage import proxied
from tests.integration.site import Site

pytestmark = pytest.mark.slow


class Told:
    """What one worker answers."""

    def __init__(self, site: Site, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = site.start_worker(DSEC_METRICS_PORT=str(self.port), **environment)

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"{self.url}{path}", timeout=10)
        except httpx.HTTPError:
            return None

    def json(self, path: str) -> dict[str, Any]:
        answer = self.get(path)
        found: dict[str, Any] = {} if answer is None else {**answer.json(), "status": answer.status_code}
        return found

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of that name with these labels; None where there is none."""
        answer = self.get("/metrics")
        found = []
        for line in (answer.text if answer is not None else "").splitlines():
            matched = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if matched and all(f'{key}="{label}"' in (matched[1] or "") for key, label in labels.items()):
                found.append(float(matched[2]))
        return sum(found) if found else None


def test_a_worker_tells_what_became_of_a_run_that_waited_gave_way_and_ended(site: Site) -> None:
    site.nodes, site.gpus = 1, 2
    told = Told(site)
    site.wait("the worker to be ready", lambda: told.json("/ready").get("status") == 200)
    health = told.json("/health")
    assert (health["ok"], health["role"], health["pool"]) == (True, "leader", site.pool)
    assert {"election", "plan", "carry"} <= health["seconds_since"].keys()
    notes = site.home / "notes"
    sleeps = {"where": str(notes), "seconds": 1, "at_first": 90}
    gives_way = site.submit("sleeper", parameters=sleeps, devices_per_node=2, grace=1)
    site.wait_gang(gives_way, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.commit(gives_way)
    waits = site.submit("hello", devices_per_node=2)
    site.wait("the wait to be told", lambda: told.value("dsec_gangs_waiting", team="default") == 1)
    assert told.value("dsec_pool_devices", health="healthy") == 2
    assert told.value("dsec_pool_devices_held", health="healthy") == 2
    assert told.value("dsec_team_held_devices", team="default") == 2
    assert told.value("dsec_leader", pool=site.pool) == 1
    urgent = site.submit("hello", devices_per_node=2, priority=50)
    for run in (urgent, waits, gives_way):
        site.wait_gang(run, GangState.ENDED, seconds=60)
    assert told.value("dsec_evictions_total", team="default") == 1
    assert told.value("dsec_handover_seconds_count") == 1
    assert told.value("dsec_queue_wait_seconds_count", team="default", size="2-8") == 3
    assert told.value("dsec_start_seconds_count", stage="launch") == 4
    site.wait("the ends to be told", lambda: told.value("dsec_runs_ended_total", state="Completed") == 3)
    assert told.value("dsec_admissions_total", team="default") == 4
    assert (told.value("dsec_prefect_requests_total", outcome="ok") or 0) > 0
    assert (told.value("dsec_ledger_transaction_seconds_count", kind="write") or 0) > 0
    site.wait("usage to be told", lambda: (told.value("dsec_team_gpu_seconds_total", team="default") or 0) > 0)
    assert told.value("dsec_reservations_leaked") == 0


def test_of_two_workers_one_leads_and_only_that_one_tells_of_the_pool(site: Site) -> None:
    first = Told(site)
    site.wait("a leader", lambda: first.json("/ready").get("role") == "leader")
    second = Told(site)
    site.wait("a standby", lambda: second.json("/ready").get("role") == "standby")
    assert second.json("/ready")["ok"] and second.json("/health")["ok"]
    site.wait("the leader to tell of the pool", lambda: first.value("dsec_pool_devices") == 8)
    assert (first.value("dsec_leader"), second.value("dsec_leader")) == (1, 0)
    assert second.value("dsec_pool_devices") is None, "sums over workers would count the devices twice"
    site.stop_worker(first.process)
    site.wait("the standby to lead", lambda: second.value("dsec_leader") == 1)
    site.wait("it to tell of the pool", lambda: second.value("dsec_pool_devices") == 8)


def test_a_prefect_api_that_is_away_is_told_and_makes_no_worker_unhealthy(
    prefect_server: PrefectServer, tmp_path: Path
) -> None:
    with proxied(prefect_server.port) as proxy:
        site = Site(server=prefect_server, home=tmp_path, api_url=proxy.api_url)
        try:
            told = Told(site)
            site.wait("the worker to be ready", lambda: told.json("/ready").get("status") == 200)
            assert told.value("dsec_prefect_api_away") == 0
            proxy.cut()
            site.wait("it to be told", lambda: told.value("dsec_prefect_api_away") == 1)
            for path in ("/health", "/ready"):
                answer = told.json(path)
                assert (answer["status"], answer["prefect"]) == (200, "away")
            assert (told.value("dsec_prefect_requests_total", outcome="unavailable") or 0) > 0
            proxy.restore()
            site.wait("its return to be told", lambda: told.value("dsec_prefect_api_away") == 0)
        finally:
            site.close()


def test_a_port_that_is_taken_is_refused_by_name(site: Site) -> None:
    first = Told(site)
    site.wait("the worker to be ready", lambda: first.json("/ready").get("status") == 200)
    second = site.start_worker(DSEC_METRICS_PORT=str(first.port))
    assert second.wait(timeout=60) != 0
    assert f"DSEC_METRICS_PORT: the worker cannot listen at 127.0.0.1:{first.port}" in site.worker_log()
