"""A user ends a waiting run in the moment of its claim: it stays ended, and its code does not run.

The server lets Pending replace Completed and Failed, so whoever claims has to find out.
"""

import signal
import threading
import time
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site, WorkerProcess

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["COMPLETED", "FAILED"])
def test_a_waiting_run_that_is_ended_just_before_its_claim_stays_ended(site: Site, kind: str) -> None:
    """The worker is stopped right before it sends Pending, and goes on once the user has clicked."""
    notes = site.home / "notes"
    worker = site.start_worker(DSEC_FAULT="prefect.claim.pending:stall:1", DSEC_LEASE_TTL="30")
    run = site.submit("hello", parameters={"where": str(notes)}, devices_per_node=1)
    _while_stopped(site, worker, lambda: site.set_state(run, kind))
    _stays(site, run, kind)
    assert not notes.exists()
    assert "Pending" in site.history(run), "the claim did not replace the state, so nothing was tested"


def test_a_run_that_is_completed_between_its_claim_and_its_launch_stays_completed(site: Site) -> None:
    notes = site.home / "notes"
    worker = site.start_worker(DSEC_FAULT="cluster.launch:stall:1", DSEC_LEASE_TTL="30")
    run = site.submit("hello", parameters={"where": str(notes)}, devices_per_node=1)
    _while_stopped(site, worker, lambda: site.set_state(run, "COMPLETED"))
    _stays(site, run, "COMPLETED")
    assert not notes.exists()


def test_a_run_that_was_retried_and_is_completed_just_before_its_claim_stays_completed(site: Site) -> None:
    """It has a start time already, so nothing but the history tells."""
    notes = site.home / "notes"
    run = site.submit("hello", parameters={"where": str(notes)}, devices_per_node=1)
    site.set_state(run, "FAILED")
    site.set_state(run, "SCHEDULED", "AwaitingRetry")
    worker = site.start_worker(DSEC_FAULT="prefect.claim.pending:stall:1", DSEC_LEASE_TTL="30")
    _while_stopped(site, worker, lambda: site.set_state(run, "COMPLETED"))
    _stays(site, run, "COMPLETED")
    assert not notes.exists()
    assert "Pending" in site.history(run), "the claim did not replace the state, so nothing was tested"


def test_runs_that_are_completed_at_any_moment_of_their_start_stay_completed(site: Site) -> None:
    """Ten runs are completed at moments spread over their claim and start; each ran once or not at all."""
    notes = site.home / "notes"
    site.start_worker()
    warm = site.submit("hello")
    site.wait_state(warm, "COMPLETED")
    runs, clicks = [], []
    for number in range(10):
        run = site.submit("hello", parameters={"where": str(notes)}, devices_per_node=1)
        click = threading.Timer(0.04 * number, site.set_state, (run, "COMPLETED"))
        click.start()
        runs.append(run)
        clicks.append(click)
    for click in clicks:
        click.join()
    for run in runs:
        site.wait_state(run, "COMPLETED", seconds=30)
        site.wait(f"{run} to be over here too", lambda run=run: _is_over(site, run), 30)
    time.sleep(2)
    assert {site.state(run)[0] for run in runs} == {"COMPLETED"}
    ran = [line.split()[1] for line in notes.read_text().splitlines()] if notes.exists() else []
    assert len(ran) == len(set(ran)), "a run was started twice"
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []


def _while_stopped(site: Site, worker: WorkerProcess, act: object) -> None:
    site.wait("the worker to stop at the point", lambda: _is_stopped(worker.pid), 60)
    act()  # type: ignore[operator]
    worker.send_signal(signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _stays(site: Site, run: str, kind: str) -> None:
    site.wait("the gang to be over", lambda: _is_over(site, run), 60)
    site.wait_state(run, kind)
    time.sleep(1.5)
    assert site.state(run)[0] == kind
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []


def _is_over(site: Site, run: str) -> bool:
    gang = site.gang(run)
    return gang is None or gang.state is GangState.ENDED
