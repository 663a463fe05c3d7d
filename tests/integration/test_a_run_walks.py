"""The thin thread: a run waits for its GPUs, gets them, and completes, on a real Prefect server."""

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_a_run_is_admitted_runs_and_completes(site: Site) -> None:
    where = site.home / "notes"
    site.start_worker()
    run = site.submit("hello", parameters={"where": str(where)}, devices_per_node=2)
    assert site.wait_state(run, "COMPLETED", "FAILED", "CRASHED")[0] == "COMPLETED"
    assert where.read_text().split() == ["hello", run, "1"]
    site.wait_gang(run, GangState.ENDED)
    assert site.ledger.holders(site.pool) == []
    assert site.ledger.check(site.pool) == []
    pid = site.run(run)["infrastructure_pid"]
    assert pid == f"dsec:{site.pool}:{run}:1"
