"""On a real server with a real agent: data is fetched from the reservation on, and the start finds it there."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.ledger import PrefetchState
from dsec_blocks.model.gangs import GangState
from tests.fixtures.forking import start_module
from tests.integration.site import Site
from tests.integration.test_operators import ordered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
MIB = 1 << 20


@pytest.fixture
def agent(site: Site) -> Iterator[Path]:
    """The agent of this machine, which has both of the site's nodes; its log."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}
    log = site.home / "agent.log"
    nodes = [option for number in range(site.nodes) for option in ("--node", f"node-{number}")]
    env = {**clean, "DSEC_HOME": str(site.home), "DSEC_LEDGER_URL": site.ledger_url}
    process = start_module("dsec_deployments.cli", ["agent", *nodes], env=env, log=log)
    yield log
    process.terminate()
    assert process.wait(60) == 0, log.read_text()


def test_a_bundle_is_fetched_for_a_reserved_run_and_its_start_reads_it_from_the_cache(site: Site, agent: Path) -> None:
    origin, notes = site.home / "origin", site.home / "notes"
    origin.mkdir()
    (origin / "weights").write_bytes(os.urandom(4 * MIB))
    bundle = f"file://{origin}"
    run = reserved(site, notes, bundle)
    site.wait(
        f"the agent to have it: {agent.read_text()}",
        lambda: [o.state for o in site.ledger.prefetches_of(run)] == [PrefetchState.DONE],
        60,
    )
    site.wait_state(run, "COMPLETED", seconds=90)
    site.wait_gang(run, GangState.ENDED)
    read = json.loads(notes.read_text())
    assert (read["bytes"], read["fetched"]) == (4 * MIB, 0), "the start had to fetch"
    [order] = site.ledger.prefetches_of(run)
    told = " ".join(ordered(site, "explain", run).split())
    assert f"4 MiB on {order.node}" in told, told
    assert site.ledger.check(site.pool) == []


def test_a_run_whose_prefetch_failed_fetches_for_itself_and_says_so(site: Site, agent: Path) -> None:
    origin, notes = site.home / "origin", site.home / "notes"
    bundle = f"file://{origin}"
    run = reserved(site, notes, bundle)
    site.wait(
        f"the prefetch to fail: {agent.read_text()}",
        lambda: [o.state for o in site.ledger.prefetches_of(run)] == [PrefetchState.FAILED],
        60,
    )
    # What was not there when the node was told to fetch is there by the time the run starts.
    (site.home / "filling").mkdir()
    (site.home / "filling" / "weights").write_bytes(os.urandom(4 * MIB))
    (site.home / "filling").rename(origin)
    site.wait_state(run, "COMPLETED", seconds=90)
    site.wait_gang(run, GangState.ENDED)
    read = json.loads(notes.read_text())
    assert (read["bytes"], read["fetched"]) == (4 * MIB, 4 * MIB)
    report = reported(site, run)
    assert "| last start: fetch | " in report and "4 MiB by the gang itself; failed on node-" in report, report
    assert "| last start: stall | " in report and "| byte hit ratio of the nodes' caches | 0.0% of 4 MiB |" in report


def test_a_second_start_of_the_same_data_stands_still_for_none_of_it(site: Site) -> None:
    """Nobody fetches ahead of it either: what its report says of its data it was told by the run itself."""
    origin = site.home / "origin"
    origin.mkdir()
    (origin / "weights").write_bytes(os.urandom(MIB))
    site.start_worker()
    for number, ratio in enumerate(("0.0%", "100.0%")):
        where = str(site.home / f"notes-{number}")
        run = site.submit("reads", parameters={"where": where, "uri": str(origin)}, nodes=1, devices_per_node=1)
        site.wait_state(run, "COMPLETED", seconds=90)
        site.wait_gang(run, GangState.ENDED)
        assert f"| byte hit ratio of the nodes' caches | {ratio} of 1 MiB |" in reported(site, run)


def reserved(site: Site, notes: Path, bundle: str) -> str:
    """A run that is promised what another still holds: between the promise and its start its data comes."""
    site.start_worker()
    blocker = site.submit("sleeper", parameters={"where": str(site.home / "b"), "seconds": 60}, nodes=2,
                          devices_per_node=4, grace=6)  # fmt: skip
    site.wait_gang(blocker, GangState.RUNNING)
    site.commit(blocker)
    return site.submit("reads", parameters={"where": str(notes), "uri": bundle}, nodes=1, devices_per_node=4,
                       inputs=[bundle], priority=50)  # fmt: skip


def reported(site: Site, run: str) -> str:
    """The report on the run's page."""
    site.wait("the report", lambda: site.artifacts("dsec-run-report", flow_run_id={"any_": [run]}), 30)
    return str(site.artifacts("dsec-run-report", flow_run_id={"any_": [run]})[0]["data"])
