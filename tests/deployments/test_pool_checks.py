"""What a command reads of a pool's pauses and run limits, on a real server."""

from uuid import uuid4

import httpx
import pytest

from dsec_deployments.pool_checks import prefect_checks
from dsec_deployments.prefect_api import PrefectApi
from tests.fixtures.ports import free_port
from tests.fixtures.prefect import PrefectServer

pytestmark = pytest.mark.slow


def test_pauses_and_run_limits_are_read_as_prefect_keeps_them(prefect_server: PrefectServer) -> None:
    pool = f"pool-{uuid4().hex[:8]}"
    api = PrefectApi(prefect_server.api_url)
    with httpx.Client(base_url=prefect_server.api_url) as http:
        http.post("work_pools/", json={"name": pool, "type": "process"}).raise_for_status()
        for queue in ({"name": "vision", "is_paused": True}, {"name": "speech", "concurrency_limit": 2}):
            http.post(f"work_pools/{pool}/queues", json=queue).raise_for_status()
        told = prefect_checks(api, pool)
        limits = {"speech": 2}
        assert told == {"is_paused": False, "limit": None, "paused_queues": ["vision"], "queue_limits": limits}
        change = {"is_paused": True, "concurrency_limit": 3}
        http.patch(f"work_pools/{pool}", json=change).raise_for_status()
    told = prefect_checks(api, pool)
    assert told is not None and (told["is_paused"], told["limit"]) == (True, 3)
    assert prefect_checks(api, "no-such-pool") is None


def test_a_server_that_does_not_answer_tells_nothing() -> None:
    assert prefect_checks(PrefectApi(f"http://127.0.0.1:{free_port()}/api"), "pool") is None
