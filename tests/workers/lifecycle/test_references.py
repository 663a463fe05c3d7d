"""Job variables that refer to what is not there are one run's trouble, for as long as it is not there."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.reasons import ReasonCode
from dsec_blocks.model.requests import GangRequest
from dsec_workers.form import default_template
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import Run
from tests.blocks.ledger.gangs import POOL, known
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import run, state

REQUEST = httpx.Request("GET", "http://server/block")


def answered(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(f"HTTP {status}", request=REQUEST, response=httpx.Response(status))


class Server:
    """Two runs that wait, of which one refers to a block that the server does not give away."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        odd, other = run(state("SCHEDULED", at=0.0), run_count=0), run(state("SCHEDULED", at=0.0), run_count=0)
        for each, name in ((odd, "odd"), (other, "other")):
            object.__setattr__(each, "id", name)
        object.__setattr__(odd, "job_variables", {"env": {"TOKEN": "{{ prefect.blocks.secret.token }}"}})
        self.waits = [odd, other]

    async def scheduled(self, pool: str, **_: Any) -> list[Run]:
        return self.waits

    async def mark_ready(self, pool: str) -> None:
        pass

    async def read_block_document_by_name(self, name: str, block_type_slug: str) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(data={"value": "s3cret"})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ObjectNotFound(answered(404)), "Block not found: 'token' of type 'secret'"),
        (answered(403), "what its job variables refer to cannot be read: HTTP 403"),
    ],
    ids=["deleted", "forbidden"],
)
async def test_one_run_whose_block_was_deleted_kept_every_run_of_the_pool_out(
    ledger: Ledger, fence: Fence, clock: ManualClock, error: Exception, told: str
) -> None:
    server: Any = Server(error)
    intake = Intake(observe=lambda *_: None, client=server)  # type: ignore[arg-type, return-value]
    intake.form.template, intake.form.queues = default_template(), ("default",)
    term: Any = SimpleNamespace(
        pool=POOL, ledger=ledger, fence=fence, clock=clock, api=server, runs={}, refused={}, manifests={}, astray=set(),
    )  # fmt: skip
    term.read, term.write = partial(Term.read, term), partial(Term.write, term)
    await intake._sweep(term, clock.now())
    assert known(ledger, "other").request == GangRequest()
    assert set(term.refused) == {"odd"}
    assert term.refused["odd"].code is ReasonCode.INVALID_REQUEST and term.refused["odd"].text.startswith(told)

    server.error = None
    await intake._sweep(term, clock.now())
    assert term.refused == {} and known(ledger, "odd").request.env == {"TOKEN": "s3cret"}
