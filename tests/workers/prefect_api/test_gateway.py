"""How many requests the worker has under way at a time."""

from typing import Any, cast

import anyio
import httpx
from prefect.client.orchestration import PrefectClient

from dsec_workers.prefect_api import PrefectApi
from dsec_workers.prefect_api.gateway import STATE_WRITES_AT_ONCE


class _SlowServer:
    """Answers every request with an accepted state, but none before it is told to."""

    def __init__(self) -> None:
        self.under_way = self.most = self.served = 0
        self.answer = anyio.Event()

    async def request(self, method: str, path: str, **_: Any) -> httpx.Response:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.answer.wait()
        self.under_way -= 1
        self.served += 1
        return httpx.Response(201, json={"status": "ACCEPT", "state": None} if path.endswith("set_state") else {})


async def test_a_burst_of_claims_is_a_few_requests_at_a_time_and_a_read_does_not_wait_behind_it() -> None:
    """The server opens a database connection for each request beyond its pool, which doubles what a claim costs it."""
    server = _SlowServer()
    api = PrefectApi(cast(PrefectClient, server))
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(api.claim_pending, str(number), "mine")
        await anyio.wait_all_tasks_blocked()
        assert server.under_way == STATE_WRITES_AT_ONCE
        group.start_soon(api.pool, "pool")
        await anyio.wait_all_tasks_blocked()
        assert server.under_way == STATE_WRITES_AT_ONCE + 1
        server.answer.set()
    assert server.served == 21
    assert server.most == STATE_WRITES_AT_ONCE + 1
