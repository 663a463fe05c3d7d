"""What a policy may ask for beside eviction by priority: growing into what is left, and taking turns."""

from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_run_that_started_small_grows_when_the_other_node_becomes_free(site: Site) -> None:
    notes = site.home / "notes"
    site.ledger.put_policy(site.pool, {"resizing": True, "growth_worth": 0.01}, by="ann", why="idle nodes")
    site.start_worker()
    other = site.submit("sleeper", parameters={"where": str(site.home / "other"), "seconds": 90}, devices_per_node=4)
    site.wait_gang(other, GangState.RUNNING)
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 1, "at_first": 90},
                      nodes=2, min_nodes=1, devices_per_node=4, grace=1)  # fmt: skip
    gang = site.wait_gang(run, GangState.RUNNING)
    assert gang.placement is not None
    assert len(gang.placement.members) == 1
    site.wait("its user code", notes.exists)
    site.commit(run)
    site.set_state(other, "CANCELLING")
    grown = site.wait("it to grow", lambda: (g := site.gang(run)) and g.attempt == 2 and g.placement and g)
    assert len(grown.placement.members) == 2
    site.wait_state(run, "COMPLETED", seconds=60)
    ended = site.wait_gang(run, GangState.ENDED)
    assert (ended.attempt, ended.evictions) == (2, 1), "it grew more than once"
    messages = site.messages(run)
    assert any(text.startswith("Grows from 1 to 2 nodes") for text in messages), messages
    [entry] = [d for d in site.ledger.decisions(site.pool, run_id=run, limit=1000) if d.outcome == "grow"]
    assert entry.stage == "plan"
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []


def test_with_time_sharing_a_short_run_need_not_wait_for_a_long_one_of_equal_priority(site: Site) -> None:
    notes = Path(site.home / "notes")
    policy = {"time_sharing": True, "level_device_seconds": [4.0]}
    site.ledger.put_policy(site.pool, policy, by="ann", why="long runs held up everybody")
    site.start_worker()
    parameters = {"where": str(notes), "seconds": 1, "at_first": 90}
    long = site.submit("sleeper", parameters=parameters, nodes=2, devices_per_node=4, grace=1)
    site.wait_gang(long, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.commit(long)
    short = site.submit("hello", nodes=2, devices_per_node=4)
    site.wait_state(short, "COMPLETED", seconds=60)
    back = site.wait("the long one to have been asked", lambda: (g := site.gang(long)) and g.evictions == 1 and g)
    assert back.attained_seconds > 4.0
    assert back.waiting_since is not None
    site.wait_state(long, "COMPLETED", seconds=90)
    site.wait_gang(long, GangState.ENDED)
    lines = [line.split()[:2] for line in notes.read_text().splitlines()]
    assert lines == [["begin", "1"], ["begin", "2"], ["end", "2"]]
    assert site.ledger.check(site.pool) == []
