"""Many at once: more runs than devices, bursts of runs, and a server whose database is locked."""

import sqlite3

import httpx
import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def starts(site: Site) -> list[str]:
    """The runs that were admitted, in order."""
    decisions = site.ledger.decisions(site.pool, limit=500)
    return [entry.run_id for entry in decisions if entry.run_id and entry.outcome == "admit"]


def test_more_runs_than_gpus_start_as_gpus_come_free_in_the_order_they_came_16127(site: Site) -> None:
    """Issue 16127: how do I run 100 runs on 10 GPUs? Here 12 on 3, which is what a small machine has time for."""
    site.nodes, site.gpus = 1, 3
    runs = [site.submit("hello", devices_per_node=1) for _ in range(12)]
    site.start_worker()
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(site.ledger.holders(site.pool)))
        return len(site.ledger.gangs(site.pool, [GangState.ENDED])) == len(runs)

    site.wait("all of them to end", over, 120)
    assert {site.state(run)[0] for run in runs} == {"COMPLETED"}
    assert starts(site) == runs
    assert 1 <= most <= 3


def test_a_burst_of_runs_without_gpus_starts_each_once_19243(site: Site) -> None:
    """Issue 19243: a burst of creations, all started at the same moment, breaks what starts them."""
    runs = [site.submit("hello") for _ in range(24)]
    site.start_worker()
    for run in runs:
        site.wait_state(run, "COMPLETED", seconds=120)
    assert sorted(starts(site)) == sorted(runs)
    assert {site.run(run)["run_count"] for run in runs} == {1}


def test_a_server_whose_database_is_locked_loses_no_run_10188_18934_17473_19771(site: Site) -> None:
    """Issues 10188 and others: "database is locked" on SQLite fails what asked at that moment."""
    site.start_worker()
    first = site.submit("hello", devices_per_node=1)
    site.wait_state(first, "COMPLETED")
    second = site.submit("hello", devices_per_node=1)
    path = site.server.database_url.removeprefix("sqlite+aiosqlite:///")
    lock = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")
        site.wait("our decision", lambda: second in starts(site))
        with pytest.raises(httpx.ReadTimeout):  # and so does our claim
            httpx.post(f"{site.api_url}/flows/", json={"name": "waits-for-the-lock"}, timeout=12)
        lock.execute("ROLLBACK")
    finally:
        lock.close()
    site.wait_state(second, "COMPLETED", seconds=90)
    site.wait_gang(second, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    assert site.run(second)["run_count"] == 1
