"""Complaints about Prefect workers, each by its symptom (research: what others reported)."""

import fcntl
import json
import signal
import sqlite3
import time

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_workers.lifecycle.mirror import view_of
from tests.crash.cases import seed
from tests.fixtures.rotation import in_turn
from tests.integration.site import TERMINAL, Site

pytestmark = pytest.mark.slow


def test_a_run_left_in_an_in_process_retry_by_a_lost_process_is_started_again_once_22847_16126(site: Site) -> None:
    """Issue 22847: AwaitingRetry with retry_type in_process is never returned by a poll; 16126: it is submitted and
    aborted for ever.
    """
    run = site.submit("hello", devices_per_node=1)
    policy = {"retries": 3, "retry_type": "in_process"}
    site.http.patch(f"flow_runs/{run}", json={"empirical_policy": policy}).raise_for_status()
    site.start_worker()
    site.wait_state(run, "COMPLETED")
    assert site.run(run)["empirical_policy"]["retries"] == 3
    assert site.wait_gang(run, GangState.ENDED).attempt == 1
    assert site.history(run).count("Pending") == 1


def test_a_retry_that_waits_in_its_living_process_is_not_claimed_again_12509(site: Site) -> None:
    """Issue 12509: two pods run one run, because a retry-waiting run was claimed again."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit(
        "failing", parameters={"where": str(notes)}, devices_per_node=1, policy={"retries": 1, "retry_delay": 6}
    )
    site.wait_state(run, "AwaitingRetry")
    gang = site.gang(run)
    assert gang is not None
    assert (gang.state, gang.attempt) == (GangState.RUNNING, 1)
    site.wait_state(run, "FAILED", seconds=60)
    assert site.wait_gang(run, GangState.ENDED).attempt == 1
    assert notes.read_text().split() == ["tried", "tried"]


@pytest.mark.timeout(300)
def test_more_than_200_blocked_runs_hide_nobody_else_19403(site: Site) -> None:
    """Issue 19403, PR 23084: one poll returns 200 runs, so blocked ones hide everything behind them."""
    site.team("crowd", nominal_devices=0)
    site.team("quiet", nominal_devices=8)
    deployment = site.deployment("hello", nodes=3, devices_per_node=4)
    for _ in range(205):
        body = {"state": {"type": "SCHEDULED"}, "work_queue_name": "crowd"}
        site.http.post(f"deployments/{deployment}/create_flow_run", json=body).raise_for_status()
    run = site.submit("hello", queue="quiet", devices_per_node=1)
    worker = site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    site.wait("all of them to be known", lambda: len(site.ledger.gangs(site.pool, [GangState.WAITING])) == 205, 60)
    site.stop_worker(worker, signal.SIGKILL)
    # The server would mark each as late during the tests to come; asked to delete them, it would do as much.
    with sqlite3.connect(site.server.database_url.removeprefix("sqlite+aiosqlite:///"), timeout=60) as connection:
        assert connection.execute("DELETE FROM flow_run WHERE deployment_id = ?", (deployment,)).rowcount == 205


def test_a_flow_that_cannot_be_loaded_is_crashed_at_once_with_where_to_look(site: Site) -> None:
    site.start_worker()
    run = site.submit("no_such_flow", devices_per_node=1)
    message = site.wait_state(run, "CRASHED")[2]
    assert "could not be started" in message
    assert site.wait_gang(run, GangState.ENDED).infrastructure_restarts == 0


def test_hooks_need_not_run_for_devices_to_come_back_17415_10826(site: Site) -> None:
    """Issues 17415, 21794, 10826: slots are orphaned after a crash; on_crashed does not run."""
    notes = site.home / "notes"
    site.environment["DSEC_INFRASTRUCTURE_RESTARTS"] = "0"
    site.start_worker()
    run = site.submit("dying", parameters={"where": str(notes), "deaths": 9}, nodes=2, devices_per_node=4)
    site.wait_state(run, "CRASHED")
    after = site.submit("hello", nodes=2, devices_per_node=4)
    site.wait_state(after, "COMPLETED")
    site.wait_gang(after, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []


def test_a_start_that_fails_for_want_of_a_device_is_no_crash_and_the_run_ends_once_16429(site: Site) -> None:
    """Issue 16429: called Crashed because its start took long, a run then went on and Completed."""
    site.nodes, site.gpus = 1, 1
    lock = site.home / "devices" / "GPU-declared-0-0.lock"
    lock.parent.mkdir()
    with lock.open("w") as foreign:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        site.start_worker()
        run = site.submit("hello", devices_per_node=1)
        site.wait("a failed start", lambda: (g := site.gang(run)) and g.infrastructure_restarts)
        assert site.state(run)[0] == "SCHEDULED"
    site.wait_state(run, "COMPLETED")
    site.wait_gang(run, GangState.ENDED)
    states = site.history(run)
    assert [name for name in states if name.upper() in TERMINAL] == ["Completed"], states


def test_a_reservation_lasts_as_long_as_those_who_leave_for_it_may_take_19840(site: Site) -> None:
    """PR 19840: the lease on a slot expired while what was to use it was still being made ready."""
    notes = site.home / "notes"
    site.start_worker(DSEC_RESERVATION="20s")
    low = site.submit("sleeper", parameters={"where": str(notes)}, nodes=2, devices_per_node=4, grace=60)
    site.wait_gang(low, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.commit(low)
    urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
    site.wait_gang(urgent, GangState.RESERVED)
    noticed = site.ledger.evictions(site.pool)[0].noticed_at

    view = view_of(site.ledger.whole(site.pool))
    assert view.expired(noticed + 60 + 19) == set()
    assert view.expired(noticed + 60 + 3600) == {urgent}


def test_what_members_print_and_how_a_run_went_is_on_its_page(site: Site) -> None:
    site.environment["DSEC_REPORT"] = "1"
    site.start_worker()
    run = site.submit("hello", devices_per_node=2)
    site.wait_state(run, "COMPLETED")

    report = site.wait("the report", lambda: site.artifacts("dsec-run-report", flow_run_id={"any_": [run]}))[0]
    assert report["flow_run_id"] == run
    assert "| attempts | 1 |" in report["data"]
    table = site.wait("the pool map", lambda: site.artifacts(f"dsec-pool-{site.pool}"))[0]
    assert {row["node"] for row in json.loads(table["data"])} == {"node-0", "node-1"}


@pytest.mark.parametrize("mode", in_turn(["lost", "error"], day=seed(), days=2))
def test_each_run_has_one_report_also_when_the_server_is_slow_to_answer(site: Site, mode: str) -> None:
    """The server makes an artifact of every request: one whose answer was lost must not simply be sent again."""
    site.start_worker(DSEC_FAULT=f"prefect.artifact.write:{mode}:2")
    runs = [site.submit("hello", devices_per_node=1) for _ in range(4)]
    for run in runs:
        site.wait_state(run, "COMPLETED")
        site.wait("its report", lambda run=run: site.artifacts("dsec-run-report", flow_run_id={"any_": [run]}))
    time.sleep(2)
    found = [len(site.artifacts("dsec-run-report", flow_run_id={"any_": [run]})) for run in runs]
    assert found == [1] * len(runs)
