"""Complaints about Prefect workers, each by its symptom (research: what others reported)."""

import json
import time

import pytest

from dsec_blocks.model.gangs import GangState
from tests.fixtures.prefect import PrefectServer
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_run_left_in_an_in_process_retry_by_a_lost_process_is_started_again_22847(site: Site) -> None:
    """Issues 22847, 16126: AwaitingRetry with retry_type in_process is never returned by a poll."""
    run = site.submit("hello", devices_per_node=1)
    policy = {"retries": 3, "retry_type": "in_process"}
    site.http.patch(f"flow_runs/{run}", json={"empirical_policy": policy}).raise_for_status()
    site.start_worker()
    site.wait_state(run, "COMPLETED")
    assert site.run(run)["empirical_policy"]["retries"] == 3


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
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    site.wait("all of them to be known", lambda: len(site.ledger.gangs(site.pool, [GangState.WAITING])) == 205, 60)


def test_a_flow_that_cannot_be_loaded_is_crashed_at_once_with_where_to_look(site: Site) -> None:
    site.start_worker()
    run = site.submit("no_such_flow", devices_per_node=1)
    message = site.wait_state(run, "CRASHED")[2]
    assert "could not be started" in message
    assert site.wait_gang(run, GangState.ENDED).infrastructure_restarts == 0


def test_hooks_need_not_run_for_devices_to_come_back_17415(site: Site) -> None:
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


@pytest.mark.parametrize("mode", ["lost", "error"])
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


def test_everything_also_works_on_postgresql(
    prefect_server_postgres: PrefectServer, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.fixtures.prefect import client_settings

    home = tmp_path_factory.mktemp("postgres-site")
    with client_settings(prefect_server_postgres):
        site = Site(server=prefect_server_postgres, home=home, ledger_url=postgres_url)
        try:
            notes = home / "notes"
            site.start_worker()
            low = site.submit(
                "sleeper", parameters={"where": str(notes), "seconds": 3}, nodes=2, devices_per_node=4, grace=1
            )
            site.wait_gang(low, GangState.RUNNING)
            site.wait("its user code", notes.exists)
            site.commit(low)
            urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
            site.wait_state(urgent, "COMPLETED", seconds=60)
            site.wait_state(low, "COMPLETED", seconds=60)
            site.wait_gang(low, GangState.ENDED)
            assert site.ledger.check(site.pool) == []
        finally:
            site.close()
