"""The worker's HTTP interface on a worker that is made of values: its codes, and that trouble is its own."""

import socket
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.protocol import ClusterHealth
from dsec_workers.lifecycle.health import PLAN, STUCK_SECONDS, Standing, Turns
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.scheduling.policy import Policy
from dsec_workers.settings import WorkerSettings
from dsec_workers.worker_api import WorkerApi, listen
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger


class Leader:
    """What the interface reads of `Leading`: a leader of an empty pool."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        self.pool, self.ledger, self.clock = "gpus", ledger, clock
        self.metrics = WorkerMetrics(self.pool)
        self.turns = Turns(clock=clock, metrics=self.metrics)
        self.fence: object | None = object()
        self.cluster_health = ClusterHealth()
        self.cluster = SimpleNamespace(health=lambda: self.cluster_health)
        self.loop = SimpleNamespace(term=SimpleNamespace(gangs={}), planning=SimpleNamespace(policy=Policy()))
        ledger.observe = self.metrics.ledger

    @property
    def standing(self) -> Standing:
        return Standing(
            pool=self.pool,
            holder="w",
            role="leader",
            term=1,
            adopted=True,
            draining=False,
            ledger_answers=self.metrics.ledger_answers,
            prefect_away=False,
            cluster_away=self.cluster_health.away,
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leader(tmp_path: Any, clock: ManualClock) -> Any:
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    yield Leader(ledger, clock)
    ledger.close()


async def ask(api: WorkerApi, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://worker") as client:
        return await client.get(path)


async def test_a_hanging_step_is_503_on_health_with_the_reason_and_no_matter_of_readiness(
    leader: Any, clock: ManualClock
) -> None:
    api = WorkerApi(leader)
    leader.turns.expect(PLAN)
    assert (await ask(api, "/health")).status_code == 200
    clock.advance(STUCK_SECONDS + 1)
    answer = await ask(api, "/health")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the plan step has not come round for 121 s"]
    assert (await ask(api, "/ready")).status_code == 200


async def test_a_copy_of_the_cluster_that_nobody_follows_is_503_on_health_and_a_cluster_that_is_away_is_only_told(
    leader: Any,
) -> None:
    api = WorkerApi(leader)
    leader.cluster_health = ClusterHealth(away=True)
    for path in ("/health", "/ready"):
        answer = await ask(api, path)
        assert (answer.status_code, answer.json()["cluster"]) == (200, "away"), "no restart would cure that"
    leader.cluster_health = ClusterHealth(hangs=("/api/v1/pods has not been followed for 301 s",))
    answer = await ask(api, "/health")
    assert (answer.status_code, answer.json()["cluster"]) == (503, "answers")
    assert answer.json()["reasons"] == ["/api/v1/pods has not been followed for 301 s"]
    assert (await ask(api, "/ready")).status_code == 200


async def test_a_ledger_that_does_not_answer_is_503_on_ready_and_leaves_the_pool_out(
    leader: Any, clock: ManualClock
) -> None:
    api = WorkerApi(leader)
    assert "dsec_reservations_leaked" in (await ask(api, "/metrics")).text
    with leader.ledger.transaction(at="test.metrics") as connection:
        connection.exec_driver_sql("DROP TABLE inventories")
    assert "dsec_reservations_leaked" in (await ask(api, "/metrics")).text, "a few seconds are not asked for twice"
    clock.advance(60.0)
    text = (await ask(api, "/metrics")).text
    assert "dsec_reservations_leaked" not in text
    assert 'dsec_ledger_up{pool="gpus"} 0.0' in text
    answer = await ask(api, "/ready")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the ledger does not answer"])
    assert (await ask(api, "/health")).status_code == 200, "no restart would cure that"


async def test_who_does_not_lead_tells_nothing_of_the_pool(leader: Any) -> None:
    api = WorkerApi(leader)
    assert "dsec_pool_devices" in (await ask(api, "/metrics")).text
    leader.fence = None
    assert "dsec_pool_devices" not in (await ask(api, "/metrics")).text


def test_a_port_that_is_taken_is_named(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = WorkerSettings.from_environment({"DSEC_HOME": str(tmp_path), "DSEC_METRICS_PORT": str(port)})
        with pytest.raises(InvalidRequest, match=rf"DSEC_METRICS_PORT: .* 127.0.0.1:{port} .*in use"):
            listen(settings)
