"""`prefetch` as a Prefect flow on a real server: a real agent fetches, the run reports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache.prefetch import PrefetchFailed
from dsec_blocks.model.errors import InvalidRequest
from tests.fixtures.prefect import PrefectServer, client_settings
from tests.flows.test_training import artifacts
from tests.workers.node_agent.conftest import NODE, Home, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def prefect_client(prefect_server: PrefectServer) -> Iterator[None]:
    with client_settings(prefect_server):
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_client: None) -> Iterator[Home]:
    home = Home(tmp_path / "home").start()
    monkeypatch.setenv("DSEC_HOME", str(home.path))
    monkeypatch.delenv("DSEC_LEDGER_URL", raising=False)
    ledger = home.ledger()
    eventually(lambda: NODE in ledger.inventories(), "it reports")
    ledger.close()
    yield home
    home.end()


def test_every_node_that_reports_gets_the_bundle_and_the_run_says_so(home: Home, tmp_path: Path) -> None:
    from dsec_flows.data import prefetch

    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"w" * 2048)
    assert prefetch(str(weights.parent)) == [NODE]
    with home.cache.acquire(str(weights.parent)) as lease:
        assert lease.acquired.was_resident
    assert f"| {NODE} | 2 KiB | done |" in artifacts("prefetch-report")[-1].data
    with pytest.raises(InvalidRequest, match="no agent reports for node 'elsewhere'"):
        prefetch(str(weights.parent), nodes=["elsewhere"])
    with pytest.raises(PrefetchFailed, match="/nowhere does not exist"):
        prefetch("/nowhere", nodes=[NODE])
