"""What the worker writes is written once, also when the server's answer to it is lost."""

from typing import Any, cast

import httpx
import pytest
from prefect.client.orchestration import PrefectClient

from dsec_workers.prefect_api import PrefectApi, Proposal
from tests.integration.site import Site

pytestmark = pytest.mark.slow


class _LosesAnAnswer:
    """A client whose connection breaks once, after the server has carried out a state."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client
        self.lost = 0

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = await self._client.request(method, path, **options)
        if str(path).endswith("set_state") and not self.lost:
            self.lost += 1
            raise httpx.ReadError("the connection was reset")
        return answer


@pytest.mark.parametrize("force", [True, False])
async def test_a_state_whose_answer_is_lost_is_not_written_twice(site: Site, force: bool) -> None:
    """A user's automation on Cancelled would run twice otherwise."""
    run = site.submit("hello")
    async with PrefectClient(site.api_url) as client:
        losing = _LosesAnAnswer(client)
        proposal = Proposal(type="CANCELLED", name="Cancelled", message="enough")
        transition = await PrefectApi(cast(PrefectClient, losing)).finish(run, proposal, force=force)
    assert losing.lost == 1
    assert transition.accepted
    assert site.history(run) == ["Scheduled", "Cancelled"]


async def test_a_leader_that_was_stopped_while_it_wrote_an_end_does_not_write_it_after_its_successor(
    site: Site,
) -> None:
    run = site.submit("hello")
    end = Proposal(type="CANCELLED", name="Cancelled", message="Cancelled; its gang has stopped.")
    async with PrefectClient(site.api_url) as client:
        for _ in ("the successor", "the leader that was stopped"):
            assert (await PrefectApi(client).finish(run, end)).accepted
        assert (await PrefectApi(client).cancelled(run, "Cancelled while waiting.")).accepted
        assert site.history(run) == ["Scheduled", "Cancelled"]
        again = Proposal(type="SCHEDULED", name="AwaitingRetry", message="once more", scheduled_time=0.0)
        assert (await PrefectApi(client).finish(run, again, force=True)).accepted
        assert (await PrefectApi(client).finish(run, end)).accepted
    assert site.history(run) == ["Scheduled", "Cancelled", "AwaitingRetry", "Cancelled"]
