"""A newer DSec comes to a pool that an older one serves: the older workers leave with one line, and touch nothing.

The workers are started by their command line, whose exit code and words are what a kubelet or systemd sees.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.gangs import GangState
from tests.fixtures.newer import migrate_as_newer
from tests.fixtures.prefect import PrefectServer
from tests.integration.site import PATIENCE, Site

pytestmark = pytest.mark.slow
EXIT_SECONDS = 60 * PATIENCE
FORMER = Path(__file__).parents[1] / "workers" / "clusters" / "former" / "protocol-1.json"


@pytest.fixture
def site(prefect_server: PrefectServer, migrated_postgres_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(server=prefect_server, home=tmp_path, ledger_url=migrated_postgres_url)
    yield site
    site.close()


def last_words(site: Site, number: int) -> str:
    """What a worker says that ends by itself, which must be one line."""
    worker = site.workers[number]
    assert worker.wait(timeout=EXIT_SECONDS) == 3, site.worker_log(number)
    log = site.worker_log(number)
    assert "Traceback" not in log, log
    (line,) = [line for line in log.splitlines() if "newer" in line or "this DSec knows up to" in line]
    assert " ends: " in line and "nothing was touched" in line
    return line


def test_workers_leave_when_a_newer_one_has_migrated_their_ledger_and_their_gang_runs_on(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 600}, nodes=2, devices_per_node=4)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.start_worker()
    site.wait("a standby", lambda: "stands by" in site.worker_log(1))
    before, held = site.gang(run), site.ledger.holders(site.pool)

    newest = migrate_as_newer(site.ledger_url, site.home)

    assert all(f"its schema is {newest}" in last_words(site, number) for number in (0, 1))
    lease = site.ledger.lease(site.pool)
    assert lease is not None and lease.released, "a newer worker need not wait for it"
    assert (site.gang(run), site.ledger.holders(site.pool)) == (before, held)
    pid = int(notes.read_text().split()[2])
    assert processes.sighting(pid) is not None, "the flow runs on"


def test_a_worker_leaves_where_a_newer_one_has_started_a_gang(site: Site) -> None:
    record = {**json.loads(FORMER.read_text())["local"]["files"]["order.json"], "protocol": gang_protocol.VERSION + 1}
    directory = site.home / "gangs" / f"{record['run_id']}-{record['attempt']}"
    directory.mkdir(parents=True)
    (directory / "order.json").write_text(json.dumps(record))
    ended = {**processes.identify(os.getpid()).to_json(), "start_time": 1}
    supervisor = {"process": ended, "channel": str(site.home / "channel.sock")}
    (directory / "supervisor.json").write_text(json.dumps(supervisor))
    files = {path.name: path.read_bytes() for path in directory.iterdir()}

    site.start_worker()

    assert f"attempt 1 of run {record['run_id']} is of a newer DSec" in last_words(site, 0)
    lease = site.ledger.lease(site.pool)
    assert lease is not None and lease.released
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == files
