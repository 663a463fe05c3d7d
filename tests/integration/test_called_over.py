"""Somebody else ends a run whose gang lives on: the gang is stopped in the end, and the word that was given stands."""

from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_running_run_that_a_zombie_automation_calls_crashed_stays_crashed_16459_18653_21932(site: Site) -> None:
    """Issues 16459, 18653, 21932: healthy runs are forced to Crashed. Nobody asked for a cancellation."""
    notes = site.home / "notes"
    site.start_worker(DSEC_LINGER="1")
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    process = Path(f"/proc/{notes.read_text().split()[2]}")
    assert process.exists()
    site.set_state(run, "CRASHED", force=True)
    gang = site.wait_gang(run, GangState.ENDED)
    assert not process.exists()
    assert gang.outcome["kind"] == "over"
    assert site.state(run)[0] == "CRASHED"
    assert "Cancelled" not in site.history(run)
    assert site.ledger.holders(site.pool) == []
