"""The head of line starts when the contract ends that it waits for, whoever has passed it meanwhile."""

import signal

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_passer_leaves_in_time_for_the_head_although_the_worker_that_let_it_pass_was_killed(site: Site) -> None:
    site.ledger.put_policy(site.pool, {"conditional_worth": 0.0, "checkpoint_seconds": 3.0}, by="ann", why="short runs")
    worker = site.start_worker()
    lasting = site.submit("sleeper", parameters={"where": str(site.home / "lasting"), "seconds": 90},
                          devices_per_node=4, max_runtime="20s", preemptible=False, grace=1)  # fmt: skip
    site.wait_gang(lasting, GangState.RUNNING)
    head = site.submit("hello", nodes=2, devices_per_node=4)
    site.wait("its place", lambda: [row["run_id"] for row in site.ledger.shadows(site.pool)] == [head])
    notes = site.home / "passer"
    passer = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60, "at_first": 90},
                         devices_per_node=4, grace=1)  # fmt: skip
    site.wait("the passer's user code", notes.exists)
    assert site.gang(passer).conditional_until == site.ledger.shadows(site.pool)[0]["start"]  # type: ignore[union-attr]
    site.stop_worker(worker, signal.SIGKILL)
    site.start_worker()
    site.wait_gang(passer, GangState.EVICTING, GangState.LEAVING, GangState.WAITING)
    site.wait_state(head, "COMPLETED", seconds=60)
    evictions = site.ledger.evictions(site.pool, open_only=False)
    # Back in line it may pass once more, for a moment: this policy asks for no more than that it can leave in time.
    assert {(each.run_id, each.for_run) for each in evictions} == {(passer, head)}, evictions
    told = evictions[0]
    admitted = site.gang(head).admitted_at  # type: ignore[union-attr]
    assert admitted is not None and told.noticed_at < admitted, "told only when the head could be admitted"
    outcomes = {
        run: [d.outcome for d in site.ledger.decisions(site.pool, run_id=run, limit=100)] for run in (passer, head)
    }
    assert "recall" in outcomes[passer] and "recall" in outcomes[head]
    assert any("on the condition that it leaves in time" in text for text in site.messages(passer))
    site.set_state(passer, "CANCELLING")
    site.wait_state(passer, "CANCELLED", seconds=60)
    assert site.ledger.check(site.pool) == []
