"""Eviction: the urgent run gets its GPUs, the victim waits again and resumes."""

from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_t19_a_killed_victim_counts_as_done_instead_of_waiting_and_resuming(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    low = site.submit(
        "sleeper", parameters={"where": str(notes), "seconds": 1, "at_first": 90}, nodes=2, devices_per_node=4, grace=1,
        policy={"retries": 2},
    )  # fmt: skip
    site.wait_gang(low, GangState.RUNNING)
    site.wait("its user code", lambda: notes.exists())
    site.commit(low)
    due = site.gang(low).eligible_at  # type: ignore[union-attr]
    urgent = site.submit("sleeper", parameters={"where": str(site.home / "urgent"), "seconds": 90},
                         nodes=2, devices_per_node=4, priority=50, grace=1)  # fmt: skip
    site.wait_gang(urgent, GangState.RUNNING)
    kind, name, message = site.wait_state(low, "AwaitingRetry")
    assert (kind, name) == ("SCHEDULED", "AwaitingRetry")
    gang = site.wait_gang(low, GangState.WAITING)
    assert (gang.evictions, gang.eligible_at, gang.attempt) == (1, due, 1)
    assert site.run(low)["infrastructure_pid"] is None
    assert message.startswith("Preempted by") or "in line" in message
    site.set_state(urgent, "CANCELLING")
    site.wait_state(urgent, "CANCELLED")
    site.wait_state(low, "COMPLETED", seconds=60)
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert [line[:2] for line in lines] == [["begin", "1"], ["begin", "2"], ["end", "2"]]
    # Absolute: the user's two, and the one that was our doing.
    assert site.run(low)["empirical_policy"]["retries"] == 3
    log = site.logs(low)
    assert any(text.startswith("Asked to leave within 1 s: Preempted by") for text in log), log
    messages = site.messages(low)
    assert any(text.startswith("Preempted by") for text in messages), messages
    site.wait_gang(low, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []


def test_a_run_that_completes_within_its_grace_stays_completed(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    low = site.submit("sleeper", parameters={"where": str(notes), "seconds": 5}, nodes=2, devices_per_node=4, grace=20)
    site.wait_gang(low, GangState.RUNNING)
    site.commit(low)
    urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
    site.wait_gang(low, GangState.EVICTING)
    site.wait_state(urgent, "COMPLETED")
    site.wait_state(low, "COMPLETED")
    gang = site.wait_gang(low, GangState.ENDED)
    assert gang.evictions == 0
    assert notes.read_text().split()[-2:] == ["end", "1"]


def test_when_the_preemptor_is_cancelled_its_victims_are_left_in_peace_or_resume(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    low = site.submit("sleeper", parameters={"where": str(notes), "seconds": 8}, nodes=2, devices_per_node=4, grace=6)
    site.wait_gang(low, GangState.RUNNING)
    site.commit(low)
    urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
    site.wait_gang(low, GangState.EVICTING)
    site.set_state(urgent, "CANCELLING")
    site.wait_state(urgent, "CANCELLED")
    site.wait_gang(urgent, GangState.ENDED)
    site.wait_state(low, "COMPLETED", seconds=60)
    assert site.ledger.check(site.pool) == []


def test_an_operator_evicts_a_run_and_it_comes_back(site: Site) -> None:
    notes = Path(site.home / "notes")
    site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 3}, devices_per_node=4, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.ledger.wish(site.pool, "evict", run, {}, by="ann", why="maintenance")
    site.wait("the eviction", lambda: (g := site.gang(run)) and g.evictions == 1)
    site.wait_state(run, "COMPLETED", seconds=60)
    assert any(text.startswith("Evicted by ann: maintenance") for text in site.messages(run)), site.messages(run)


def test_an_eviction_uses_up_none_of_the_retries_that_a_flow_has_in_its_code(site: Site) -> None:
    """`@flow(retries=2)`: the run's own policy says nothing, and the server counts every start."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit(
        "fails_when_resumed", parameters={"where": str(notes), "failures": 2}, devices_per_node=1, grace=1
    )
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.ledger.wish(site.pool, "evict", run, {}, by="ann", why="maintenance")
    site.wait_state(run, "COMPLETED", "FAILED", seconds=60)
    assert site.state(run)[0] == "COMPLETED", site.messages(run)
    assert notes.read_text().split()[1::2] == ["1", "2", "2", "2"]
    assert site.wait_gang(run, GangState.ENDED).evictions == 1
