"""The Prefect API goes away and comes back: nothing is lost, nothing runs twice."""

import time
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer
from tests.integration.outage import proxied
from tests.integration.site import Site

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "seconds",
    [
        # The story of 90 s, once more; short outages are in the drains below and in test_metrics.
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(240)]),
        pytest.param(90, marks=pytest.mark.timeout(400)),
        pytest.param(900, marks=[pytest.mark.long, pytest.mark.timeout(1500)]),
    ],
)
def test_an_outage_loses_nothing_16977(
    prefect_server: PrefectServer, zygote: Zygote | None, tmp_path: Path, seconds: float
) -> None:
    """Issue 16977: one API 500 kills the worker and all its runs. Runs end, are evicted and are made meanwhile."""
    with proxied(prefect_server.port) as proxy:
        site = Site(server=prefect_server, home=tmp_path, api_url=proxy.api_url, gpus=4, nodes=1, zygote=zygote)
        try:
            worker = site.start_worker()
            at = {name: str(tmp_path / name) for name in ("through", "ends", "evicted", "dies")}
            one = {"devices_per_node": 1, "grace": 1}
            through = site.submit("sleeper", parameters={"where": at["through"], "seconds": seconds + 12}, **one)
            ends = site.submit("sleeper", parameters={"where": at["ends"], "seconds": 12}, **one)
            evicted = site.submit("sleeper", parameters={"where": at["evicted"], "seconds": 25}, **one)
            dies = site.submit("dying_late", parameters={"where": at["dies"], "seconds": 12}, **one)
            for run, name in ((through, "through"), (ends, "ends"), (evicted, "evicted"), (dies, "dies")):
                site.wait_gang(run, GangState.RUNNING)
                site.wait(f"{name} to be in its user code", Path(at[name]).exists)
            proxy.cut()
            began = time.monotonic()
            site.ledger.wish(site.pool, "evict", evicted, {}, by="test", why="during the outage")
            made = site.submit("hello", devices_per_node=1)
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
            assert worker.poll() is None, "the worker ended"
            assert site.state(made)[0] == "SCHEDULED"
            proxy.restore()
            for run in (made, ends, evicted, dies, through):
                site.wait_state(run, "COMPLETED", seconds=150)
                site.wait_gang(run, GangState.ENDED)
            lines = {name: Path(where).read_text().splitlines() for name, where in at.items()}
            assert [line.split()[0] for line in lines["through"]] == ["begin", "end"]
            assert [line.split()[0] for line in lines["ends"]] == ["begin", "end"]
            assert [line.split()[:2] for line in lines["evicted"]] == [["begin", "1"], ["begin", "2"], ["end", "2"]]
            assert lines["dies"] == ["begin", "begin"]
            assert site.gang(evicted).evictions == 1  # type: ignore[union-attr]
            assert site.gang(dies).infrastructure_restarts == 1  # type: ignore[union-attr]
            assert site.ledger.holders(site.pool) == []
            assert site.ledger.check(site.pool) == []
        finally:
            site.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("drain", ["", "evict"])
def test_a_worker_drains_while_the_api_is_away_and_nothing_is_lost(
    prefect_server: PrefectServer, zygote: Zygote | None, tmp_path: Path, drain: str
) -> None:
    """What Prefect has to be told waits in the ledger for the next worker."""
    with proxied(prefect_server.port) as proxy:
        site = Site(server=prefect_server, home=tmp_path, api_url=proxy.api_url, gpus=4, nodes=1, zygote=zygote)
        try:
            notes = tmp_path / "notes"
            worker = site.start_worker(DSEC_DRAIN=drain)
            run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 20}, devices_per_node=1, grace=1)
            site.wait_gang(run, GangState.RUNNING)
            site.wait("its user code", notes.exists)
            process = Path(f"/proc/{notes.read_text().split()[2]}")
            proxy.cut()
            site.wait("the worker to notice", lambda: "the Prefect API is away" in site.worker_log(), 30)
            took = site.stop_worker(worker)
            assert took < 45 if drain else site.drained_in() <= 5  # the client's own tries take 62 s
            gang = site.gang(run)
            assert gang is not None
            if drain:
                assert gang.state is GangState.LEAVING
                assert not process.exists()
                assert site.ledger.holders(site.pool) == []
            else:
                assert gang.state is GangState.RUNNING
                assert process.exists()
            proxy.restore()
            site.start_worker()
            site.wait_state(run, "COMPLETED", seconds=90)
            gang = site.wait_gang(run, GangState.ENDED)
            assert (gang.evictions, gang.attempt) == ((1, 2) if drain else (0, 1))
            begun = [line for line in notes.read_text().splitlines() if line.startswith("begin")]
            assert len(begun) == gang.attempt
            assert site.ledger.check(site.pool) == []
        finally:
            site.close()
