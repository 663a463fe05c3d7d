"""A gang that asks for no GPU has others leave by priority, and starts in what they leave."""

import psutil
import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_an_urgent_gang_without_cards_starts_once_an_unimportant_one_has_made_room(site: Site) -> None:
    each = round(len(psutil.Process().cpu_affinity()) / site.nodes, 3)  # type: ignore[arg-type]
    site.start_worker()
    notes = site.home / "low"
    low = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60, "at_first": 90},
                      nodes=site.nodes, cpus=each, grace=1)  # fmt: skip
    site.wait("its user code", notes.exists)
    site.commit(low)
    urgent = site.submit("hello", cpus=each, priority=50)
    site.wait_state(urgent, "COMPLETED", seconds=60)
    [told] = site.ledger.evictions(site.pool, open_only=False)
    assert (told.run_id, told.for_run, told.state) == (low, urgent, "left")
    admitted = site.gang(urgent).admitted_at  # type: ignore[union-attr]
    assert admitted is not None and told.closed_at is not None and told.closed_at <= admitted
    outcomes = [
        {entry.outcome for entry in site.ledger.decisions(site.pool, run_id=run, limit=100)} for run in (low, urgent)
    ]
    assert all("preempt" in each for each in outcomes)
    assert any(text.startswith("Preempted by") for text in site.messages(low))
    site.wait_gang(low, GangState.RUNNING)
    assert site.gang(low).attempt == 2  # type: ignore[union-attr]
    site.set_state(low, "CANCELLING")
    site.wait_state(low, "CANCELLED", seconds=60)
    assert site.ledger.check(site.pool) == []
