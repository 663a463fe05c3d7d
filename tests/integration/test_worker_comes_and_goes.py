"""Workers die, drain and take over; gangs do not notice."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.model.gangs import GangState
from tests.crash.cases import seed
from tests.fixtures.pausing import pause
from tests.fixtures.rotation import in_turn
from tests.integration.site import Site

pytestmark = pytest.mark.slow


@pytest.fixture
def by_command(site: Site) -> None:
    """How a worker is started and stopped matters: by its command line, with an exit code of its own."""
    site.zygote = None


def test_after_kill_9_the_successor_adopts_what_runs_and_starts_what_waits_18257(site: Site) -> None:
    """Issue 18257: the worker is killed; the run is Running and nothing resumes."""
    notes = site.home / "notes"
    worker = site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 12}, nodes=2, devices_per_node=4)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    waiting = site.submit("hello", devices_per_node=1)
    site.wait_state(waiting, "AwaitingGPUs")
    site.stop_worker(worker, signal.SIGKILL)
    orphan = site.submit("hello", devices_per_node=1)
    site.start_worker()
    site.wait("the successor", lambda: "leads pool" in site.worker_log())
    for done in (run, waiting, orphan):
        site.wait_state(done, "COMPLETED", seconds=60)
        site.wait_gang(done, GangState.ENDED)
    assert notes.read_text().split()[::2][:1] == ["begin"]
    assert len(notes.read_text().splitlines()) == 2
    assert site.ledger.check(site.pool) == []


def test_a_run_that_ended_while_no_worker_lived_is_recorded_with_its_exit_code(site: Site) -> None:
    notes = site.home / "notes"
    worker = site.start_worker()
    ends = site.submit("sleeper", parameters={"where": str(notes), "seconds": 3}, devices_per_node=1)
    site.wait_gang(ends, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.stop_worker(worker, signal.SIGKILL)
    site.wait_state(ends, "COMPLETED")
    time.sleep(2)
    site.start_worker()
    gang = site.wait_gang(ends, GangState.ENDED)
    assert gang.outcome["flow_exit"] == 0
    assert site.state(ends)[0] == "COMPLETED"
    assert site.ledger.holders(site.pool) == []


def _policy(point: str) -> dict[str, Any] | None:
    """A policy that a claim has to mend, where the writing of the policy is what fails."""
    return {"retries": 0, "retry_type": "in_process"} if point.startswith("prefect.claim.policy") else None


MOMENTS = (
    "ledger.admit:kill_after",
    "prefect.claim.pending:kill_after",
    "ledger.claimed:kill_after",
    "prefect.claim.policy:kill_after",
    "cluster.launch:kill_after",
    "ledger.launched:kill_before",
)
ANSWERS = [
    (point, mode)
    for point in ("prefect.claim.pending", "prefect.claim.policy", "prefect.final.write")
    for mode in ("lost", "error")
]


@pytest.mark.parametrize("point", in_turn(MOMENTS, day=seed(), days=2))
def test_a_worker_killed_in_the_middle_of_a_claim_leaves_no_run_pending_20485(site: Site, point: str) -> None:
    """Issues 20485, 18324, 17955: the worker dies between Pending and launch; stuck Pending, the slot is kept."""
    notes = site.home / "notes"
    worker = site.start_worker(DSEC_FAULT=point)
    run = site.submit("hello", parameters={"where": str(notes)}, policy=_policy(point), devices_per_node=2)
    site.wait("the worker to be killed", lambda: worker.poll() is not None, 60)
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    gang = site.wait_gang(run, GangState.ENDED)
    assert len(notes.read_text().splitlines()) == 1, "8880, 12509: started twice"
    assert gang.evictions == 0
    assert site.ledger.check(site.pool) == []


@pytest.mark.parametrize(("point", "mode"), in_turn(ANSWERS, day=seed(), days=2))
def test_a_lost_or_failed_answer_of_the_api_costs_no_run_10263(site: Site, point: str, mode: str) -> None:
    """Issue 10263: the claim timed out but was committed; the retry was aborted; stuck Pending."""
    notes = site.home / "notes"
    site.environment["DSEC_INFRASTRUCTURE_RESTARTS"] = "0"
    site.start_worker(DSEC_FAULT=f"{point}:{mode}:1")
    flow = "dying" if point == "prefect.final.write" else "hello"
    run = site.submit(flow, parameters={"where": str(notes)}, policy=_policy(point), devices_per_node=2)
    wanted = "CRASHED" if flow == "dying" else "COMPLETED"
    site.wait_state(run, wanted, seconds=60)
    site.wait_gang(run, GangState.ENDED)
    assert len(notes.read_text().splitlines()) == 1
    assert site.ledger.check(site.pool) == []


def test_devices_reserved_by_a_dead_worker_for_a_run_that_is_gone_block_nobody_17628(site: Site) -> None:
    """Issue 17628: "limit reached" with nothing running, because nobody gave back what a dead worker had taken."""
    worker = site.start_worker(DSEC_FAULT="ledger.admit:kill_after")
    gone = site.submit("hello", nodes=2, devices_per_node=4)
    site.wait("the worker to be killed", lambda: worker.poll() is not None, 60)
    assert len(site.ledger.holders(site.pool)) == 8
    site.set_state(gone, "CANCELLED", force=True)
    run = site.submit("hello", nodes=2, devices_per_node=4)
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    site.wait_gang(run, GangState.ENDED)
    assert site.wait_gang(gone, GangState.ENDED).attempt <= 1
    assert site.state(gone)[0] == "CANCELLED"
    assert site.ledger.holders(site.pool) == []


@pytest.mark.usefixtures("by_command")
def test_sigterm_drains_the_worker_and_gangs_run_on_22528_23016(site: Site) -> None:
    """Issues 22528, 16746, PR 23016: SIGTERM of the worker kills local runs or leaves them Running."""
    notes = site.home / "notes"
    worker = site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 14}, devices_per_node=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    pid = int(notes.read_text().split()[2])
    site.stop_worker(worker)
    assert site.drained_in() <= 5  # the gang takes 14 s, and nobody waits for it
    assert Path(f"/proc/{pid}").exists()
    lease = site.ledger.lease(site.pool)
    assert lease is not None
    assert lease.released
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    site.wait_gang(run, GangState.ENDED)
    assert len(notes.read_text().splitlines()) == 2


def test_a_drain_with_eviction_checkpoints_and_requeues_everything_first(site: Site) -> None:
    notes = site.home / "notes"
    worker = site.start_worker(DSEC_DRAIN="evict")
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.stop_worker(worker)
    assert site.state(run)[1] == "AwaitingRetry"
    gang = site.gang(run)
    assert gang is not None
    assert (gang.state, gang.evictions) == (GangState.WAITING, 1)
    assert site.ledger.holders(site.pool) == []


def test_a_standby_plans_nothing_and_takes_over(site: Site) -> None:
    leader = site.start_worker(DSEC_HOLDER="first")
    site.wait("the first to lead", lambda: "leads pool" in site.worker_log(0))
    site.start_worker(DSEC_HOLDER="second")
    site.wait("the second to stand by", lambda: "stands by" in site.worker_log(1))
    run = site.submit("hello", devices_per_node=1)
    site.wait_state(run, "COMPLETED")
    lease = site.ledger.lease(site.pool)
    assert lease is not None
    assert lease.holder == "first"
    site.stop_worker(leader, signal.SIGKILL)
    site.wait("the second to lead", lambda: (found := site.ledger.lease(site.pool)) and found.holder == "second")
    after = site.submit("hello", devices_per_node=1)
    site.wait_state(after, "COMPLETED")


def test_a_stopped_leader_that_wakes_up_is_fenced_and_stands_by_22664(site: Site) -> None:
    """Issue 22664: the old environment and its replacement both start user code."""
    leader = site.start_worker(DSEC_HOLDER="first")
    site.wait("the first to lead", lambda: "leads pool" in site.worker_log(0))
    site.start_worker(DSEC_HOLDER="second")
    site.wait("the second to stand by", lambda: "stands by" in site.worker_log(1))
    pause(leader.pid, site.ledger_url)
    site.wait("the second to lead", lambda: (found := site.ledger.lease(site.pool)) and found.holder == "second")
    leader.send_signal(signal.SIGCONT)
    runs = [site.submit("hello", devices_per_node=1) for _ in range(4)]
    for run in runs:
        site.wait_state(run, "COMPLETED", seconds=60)
    site.wait("the first to stand by", lambda: "stands by" in site.worker_log(0))
    assert leader.poll() is None
    assert all(site.wait_gang(run, GangState.ENDED).attempt == 1 for run in runs)
