"""What a run that waits shows, and how it stops waiting."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_waiting_run_shows_its_reason_and_starts_when_room_is_made(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    first = site.submit(
        "sleeper", parameters={"where": str(notes), "seconds": 90}, nodes=2, devices_per_node=4, grace=1
    )
    site.wait_gang(first, GangState.RUNNING)
    second = site.submit("hello", devices_per_node=4)
    before = site.run(second)["next_scheduled_start_time"]
    kind, name, message = site.wait_state(second, "AwaitingGPUs")
    assert kind == "SCHEDULED"
    assert "4" in message
    assert "1st in line" in message
    assert site.run(second)["next_scheduled_start_time"] == before
    site.set_state(first, "CANCELLING")
    assert site.wait_state(second, "COMPLETED", seconds=60)
    names = site.history(second)
    assert names.index("AwaitingGPUs") < names.index("Pending") < names.index("Running")
    assert name == "AwaitingGPUs"


def test_a_request_that_can_never_fit_says_so_and_waits_without_blocking_others(site: Site) -> None:
    site.start_worker()
    never = site.submit("hello", nodes=3, devices_per_node=4)
    message = site.wait_state(never, "AwaitingGPUs")[2]
    assert "3×4" in message
    other = site.submit("hello", devices_per_node=1)
    site.wait_state(other, "COMPLETED")
    assert site.state(never)[0] == "SCHEDULED"


def test_runs_of_an_unknown_team_are_held_with_the_teams_there_are(site: Site) -> None:
    site.http.post(f"work_pools/{site.pool}/queues", json={"name": "red"}).raise_for_status()
    site.team("vision", nominal_devices=4)
    site.start_worker()
    stray = site.submit("hello", queue="red", devices_per_node=1)
    message = site.wait_state(stray, "AwaitingGPUs")[2]
    assert "unknown team red" in message
    assert "default, vision" in message
    assert "dsec team add red" in message
    known = site.submit("hello", queue="vision", devices_per_node=1)
    site.wait_state(known, "COMPLETED")
    site.team_in_ledger("red", nominal_devices=1)
    site.wait_state(stray, "COMPLETED")


def test_a_run_of_an_unknown_team_starts_when_the_team_is_added_without_waiting_for_a_sweep(site: Site) -> None:
    site.environment["DSEC_SWEEP"] = "600"
    site.http.post(f"work_pools/{site.pool}/queues", json={"name": "red"}).raise_for_status()
    site.start_worker()
    longer_ago_than_fast_polls_ask_for = time.time() - 60
    first, second = (
        site.submit("hello", queue="red", due=longer_ago_than_fast_polls_ask_for, devices_per_node=1) for _ in range(2)
    )
    for run in (first, second):
        assert "unknown team red" in site.wait_state(run, "AwaitingGPUs")[2]
    site.team_in_ledger("red", nominal_devices=2)
    for run in (first, second):
        site.wait_state(run, "COMPLETED")


def test_an_invalid_request_is_held_with_the_field_and_what_would_do(site: Site) -> None:
    site.start_worker()
    wrong = site.submit("hello", devices_per_node=1, gpu_memory="80")
    message = site.wait_state(wrong, "AwaitingGPUs")[2]
    assert message.startswith("gpu_memory: '80' has no unit")
    assert site.gang(wrong) is not None


def test_a_paused_queue_holds_its_runs_and_lets_them_go_when_resumed(site: Site) -> None:
    site.team("slow", nominal_devices=4)
    queue = f"work_pools/{site.pool}/queues/slow"
    site.http.patch(queue, json={"is_paused": True}).raise_for_status()
    site.start_worker()
    held = site.submit("hello", queue="slow", devices_per_node=1)
    assert "paused" in site.wait_state(held, "AwaitingGPUs")[2]
    site.http.patch(queue, json={"is_paused": False}).raise_for_status()
    site.wait_state(held, "COMPLETED")


def test_a_concurrency_limit_set_in_the_ui_is_obeyed_and_told(site: Site) -> None:
    """Issue 14869: two pollers can overshoot a limit; here runs of one cycle."""
    site.http.patch(f"work_pools/{site.pool}", json={"concurrency_limit": 1}).raise_for_status()
    site.start_worker()
    runs = [
        site.submit("sleeper", parameters={"where": str(site.home / name), "seconds": 2}, devices_per_node=1)
        for name in ("one", "two", "three")
    ]
    told, spans = [], []
    for run in runs:
        site.wait_state(run, "COMPLETED", seconds=60)
        told += site.messages(run)
        states = site.http.get("flow_run_states/", params={"flow_run_id": run}).raise_for_status().json()
        at = {state["name"]: state["timestamp"] for state in states}
        spans.append((at["Pending"], at["Completed"]))
    assert any("the work pool is limited to 1 run at a time (in Prefect)" in text for text in told), told
    spans.sort()
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans)), spans


def test_a_run_due_later_starts_when_it_is_due_and_not_before_16027(site: Site) -> None:
    """Issue 16027, PR 19824: waiting runs were pushed 30 s ahead and starved."""
    site.start_worker()
    warm = site.submit("hello")
    site.wait_state(warm, "COMPLETED")
    due = time.time() + 5
    run = site.submit("hello", due=due, devices_per_node=1)
    site.wait_state(run, "COMPLETED")
    states = site.http.get("flow_run_states/", params={"flow_run_id": run}).json()
    pending = next(state for state in states if state["name"] == "Pending")
    from datetime import datetime

    claimed = datetime.fromisoformat(pending["timestamp"].replace("Z", "+00:00")).timestamp()
    assert due <= claimed < due + 2


def test_the_priority_of_a_queued_run_can_be_changed_22563(site: Site) -> None:
    """Issue 22563: the priority of a queued run cannot be changed."""
    notes = Path(site.home / "notes")
    site.start_worker()
    blocker = site.submit("sleeper", parameters={"where": str(notes), "seconds": 90}, nodes=2, devices_per_node=4)
    site.wait_gang(blocker, GangState.RUNNING)
    quiet = {"nodes": 2, "devices_per_node": 4}
    first = site.submit("hello", **quiet)
    second = site.submit("hello", **quiet)
    site.wait_state(first, "AwaitingGPUs")
    site.wait_state(second, "AwaitingGPUs")
    # Not above the blocker's, which would then have to give way.
    site.ledger.wish(site.pool, "cancel", first, {}, by="test", why="to see a wish of each kind")
    site.wait_state(first, "CANCELLED")
    wish = site.ledger.wish(site.pool, "prioritize", second, {"priority": 7}, by="test", why="urgent")
    site.wait("the wish to be granted", lambda: site.ledger.wish_outcome(wish) == "priority 7")
    gang = site.wait("the new priority", lambda: (g := site.gang(second)) and g.request.priority == 7 and g)
    assert gang.submitted_at > 0
    assert site.run(second)["job_variables"]["priority"] == 7
