"""What a start need not ask the server for: read once for many starts, and never much older than the start."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio

from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.start_answers import DEPLOYMENT_SECONDS, STORAGE_SECONDS, StartAnswers
from dsec_workers.prefect_api import ApiUnavailable, Deployment, Run
from tests.fixtures.clock import ManualClock

STORAGE = {"default_result_storage_block_id": None}


class Server:
    """A server with one deployment whose version can be changed, and the worker that asks it."""

    def __init__(self) -> None:
        self.version, self.is_away = 1, False
        self.asked: list[str] = []
        self.clock = ManualClock()
        self.term: Any = SimpleNamespace(clock=self.clock, api=self)
        self.intake = Intake(observe=self._observe, client=None)
        self.answers = StartAnswers()

    async def deployments(self, ids: Sequence[str]) -> dict[str, Deployment]:
        self.asked.append("deployments")
        await anyio.lowlevel.checkpoint()
        if self.is_away:
            raise ApiUnavailable("away")
        raw = {"id": "d1", "version": self.version}
        return {"d1": Deployment(id="d1", updated="", job_variables={}, raw=raw)}

    async def default_storage(self) -> dict[str, Any]:
        self.asked.append("storage")
        return STORAGE

    async def known(self) -> Any:
        run: Any = SimpleNamespace(deployment_id="d1")
        return await self.answers.of(self.intake, self.term, run)

    async def _observe(self, _term: Any, _run: Run) -> None:
        raise AssertionError("nothing is observed here")


async def test_starts_of_one_moment_share_one_request_for_each_thing() -> None:
    server, found = Server(), []

    async def one() -> None:
        found.append(await server.known())

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(one)
    assert sorted(server.asked) == ["deployments", "storage"]
    assert [(known.deployment, known.default_storage) for known in found] == [({"id": "d1", "version": 1}, STORAGE)] * 5


async def test_a_deployment_that_was_changed_a_while_ago_starts_as_changed() -> None:
    server = Server()
    await server.known()
    server.version = 2
    server.clock.advance(DEPLOYMENT_SECONDS + 0.1)
    known = await server.known()
    assert known.deployment["version"] == 2
    assert known.read_at == server.clock.now()


async def test_an_answer_says_how_old_it_is() -> None:
    server = Server()
    first = await server.known()
    server.clock.advance(DEPLOYMENT_SECONDS / 2)
    assert (await server.known()).read_at == first.read_at


async def test_the_storage_is_asked_for_again_after_a_while() -> None:
    server = Server()
    for _ in range(2):
        await server.known()
        server.clock.advance(STORAGE_SECONDS + 0.1)
    assert server.asked.count("storage") == 2


async def test_a_server_that_is_away_leaves_it_to_the_flow_process_to_ask() -> None:
    server = Server()
    server.is_away = True
    assert await server.known() is None
