"""How runs end: by themselves, by their machine's fault, by a limit; and what never happens twice."""

import os
import signal

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.model.gangs import GangState
from tests.crash.sightings import processes_of
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_run_whose_process_was_killed_is_restarted_and_not_left_running_10141(site: Site) -> None:
    """Issues 10141, 15945: the pod is gone and the run is Running for ever. The user's retries are untouched."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("dying", parameters={"where": str(notes)}, devices_per_node=1, policy={"retries": 0})
    site.wait("the restart", lambda: (g := site.gang(run)) and g.infrastructure_restarts == 1, seconds=30)
    site.wait_state(run, "COMPLETED", seconds=40)
    assert notes.read_text().split() == ["begin", "begin"]
    assert any("restart 1 of 3" in text for text in site.messages(run))


def test_a_run_that_loses_a_member_is_restarted_whole_and_not_left_running_15945(site: Site) -> None:
    """Issues 15945, 10141: not the flow's process is lost, but what it needs on another node."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit(
        "sleeper", parameters={"where": str(notes), "seconds": 0, "at_first": 60}, nodes=2, devices_per_node=1
    )
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    log = str(site.home / "gangs" / f"{run}-1" / "member-1.log")
    [member] = [pid for pid in processes_of(site.home) if processes.open_files(pid).get(1) == log]
    os.kill(member, signal.SIGKILL)
    site.wait("the restart", lambda: (g := site.gang(run)) and g.infrastructure_restarts == 1, seconds=30)
    site.wait_state(run, "COMPLETED")
    assert [" ".join(line.split()[:2]) for line in notes.read_text().splitlines()] == ["begin 1", "begin 2", "end 2"]
    assert any(text.startswith("Member 1 died (signal 9)") for text in site.messages(run)), site.messages(run)


def test_restarts_are_counted_and_then_the_run_is_crashed_with_what_happened(site: Site) -> None:
    notes = site.home / "notes"
    site.environment["DSEC_INFRASTRUCTURE_RESTARTS"] = "1"
    site.start_worker()
    run = site.submit("dying", parameters={"where": str(notes), "deaths": 9}, devices_per_node=1)
    message = site.wait_state(run, "CRASHED", seconds=60)[2]
    assert "signal 9" in message
    assert "restarts are used up" in message
    assert notes.read_text().split() == ["begin", "begin"]
    site.wait_gang(run, GangState.ENDED)


def test_a_failed_run_stays_failed_and_its_own_retries_are_its_own(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("failing", parameters={"where": str(notes)}, devices_per_node=1, policy={"retries": 1})
    site.wait_state(run, "FAILED", seconds=60)
    assert notes.read_text().split() == ["tried", "tried"]
    gang = site.wait_gang(run, GangState.ENDED)
    assert (gang.evictions, gang.infrastructure_restarts, gang.attempt) == (0, 0, 1)


def test_retry_in_the_ui_runs_a_finished_run_again_and_only_then(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("hello", parameters={"where": str(notes)}, devices_per_node=1)
    site.wait_state(run, "COMPLETED")
    site.wait_gang(run, GangState.ENDED)
    site.set_state(run, "SCHEDULED", "AwaitingRetry")
    site.wait("the second attempt", lambda: len(notes.read_text().splitlines()) == 2)
    site.wait_state(run, "COMPLETED")
    gang = site.wait_gang(run, GangState.ENDED)
    assert gang.attempt == 2


def test_a_run_is_stopped_at_its_longest_run_time(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, max_runtime="3s",
                      grace=1)  # fmt: skip
    kind, name, message = site.wait_state(run, "TimedOut", seconds=30)
    assert kind == "FAILED"
    assert "3 s" in message
    assert name == "TimedOut"
    site.wait_gang(run, GangState.ENDED)


def test_suspend_gives_the_gpus_back_and_resume_comes_again(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("suspending", parameters={"where": str(notes)}, devices_per_node=4)
    site.wait_state(run, "Suspended")
    site.wait_gang(run, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    site.http.post(f"flow_runs/{run}/resume", json={}).raise_for_status()
    site.wait_state(run, "COMPLETED", seconds=60)
    assert notes.read_text().split() == ["before", "before", "after"]


def test_a_paused_run_keeps_its_gpus_says_so_and_goes_on_where_it_was(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("pausing", parameters={"where": str(notes)}, nodes=2, devices_per_node=2)
    site.wait_state(run, "PAUSED")
    said = "Paused: this run keeps its 2×2 GPUs meanwhile; suspend it to let them go."
    site.wait("what it costs in its log", lambda: said in site.logs(run))
    assert len(site.ledger.holders(site.pool)) == 4
    site.http.post(f"flow_runs/{run}/resume", json={}).raise_for_status()
    site.wait_state(run, "COMPLETED")
    assert notes.read_text().split() == ["before", "after"]
    gang = site.wait_gang(run, GangState.ENDED)
    assert (gang.attempt, gang.evictions, gang.infrastructure_restarts) == (1, 0, 0)
