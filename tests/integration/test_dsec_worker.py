"""`dsec worker`, as the systemd unit runs it: what stopping it does to its gangs, and what `dsec down` can do to it."""

import pytest

from dsec_blocks.model.gangs import GangState
from tests.deployments.test_command import dsec, one_line
from tests.integration.site import Site, WorkerProcess

pytestmark = pytest.mark.slow


def _serve(site: Site, *options: str) -> WorkerProcess:
    site.zygote = None
    site.command = ("dsec_deployments.cli", "worker", "--pool", site.pool, *options)
    return site.start_worker()


def test_a_worker_that_runs_with_evict_has_its_gangs_checkpoint_when_it_is_stopped(site: Site) -> None:
    notes = site.home / "notes"
    worker = _serve(site, "--evict")
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.stop_worker(worker)
    gang = site.gang(run)
    assert gang is not None
    assert (gang.state, gang.evictions) == (GangState.WAITING, 1)
    assert site.state(run)[1] == "AwaitingRetry"
    assert site.ledger.holders(site.pool) == []


def test_down_with_evict_says_who_leads_when_it_is_not_the_worker_of_dsec_up_and_touches_nothing(site: Site) -> None:
    notes = site.home / "notes"
    _serve(site)
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    environment = {"DSEC_HOME": str(site.home), "PREFECT_API_URL": site.api_url}
    done = dsec("down", "--evict", "--pool", site.pool, home=site.home, **environment)
    assert done.returncode == 1
    assert f"pool {site.pool} is led by" in one_line(done)
    assert f"systemctl stop dsec-worker@{site.pool}" in one_line(done)
    gang = site.gang(run)
    assert gang is not None
    assert (gang.state, gang.evictions) == (GangState.RUNNING, 0)
