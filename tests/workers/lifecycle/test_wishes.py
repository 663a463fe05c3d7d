"""One wish that Prefect does not grant holds up neither the others nor the plan."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import GangState
from dsec_workers.lifecycle import wishes
from dsec_workers.lifecycle.mirror import Mirror
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable
from dsec_workers.scheduling import Policy
from tests.blocks.ledger.gangs import POOL, known, running
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import run, state


class Server:
    """Prefect, which answers requests about one run with `error`."""

    error: Exception | None = None

    async def cancel(self, run_id: str, message: str) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(accepted=True, state=state("CANCELLING"), detail=message)

    async def run(self, run_id: str) -> Any:
        if self.error is not None:
            raise self.error
        return run(state("SCHEDULED"))


@pytest.mark.parametrize("kind", ["cancel", "prioritize"])
@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ApiRefused("there is no such run", status=404), "refused: there is no such run"),
        (ApiUnavailable("HTTP 500"), None),
    ],
)
async def test_a_wish_about_one_run_that_prefect_would_not_answer_stopped_all_planning(
    ledger: Ledger, fence: Fence, clock: ManualClock, kind: str, error: Exception, answer: str | None
) -> None:
    running(ledger, fence, "victim", "n1/0")
    server, noted = Server(), []
    server.error = error
    term: Any = SimpleNamespace(
        pool=POOL, ledger=ledger, fence=fence, clock=clock, api=server,
        log=SimpleNamespace(warning=lambda *said: noted.append(said)), decide=lambda *_, **__: None,
    )  # fmt: skip
    term.read, term.write = partial(Term.read, term), partial(Term.write, term)
    asked = ledger.wish(POOL, kind, "odd", {"priority": 3}, by="ops", why="test")
    evict = ledger.wish(POOL, "evict", "victim", {}, by="ops", why="test")
    view, _ = Mirror(ledger, POOL).refresh(0.0)
    await wishes.fulfil(term, view.gangs, Policy(), ())
    assert ledger.wish_outcome(evict) == "evicting" and known(ledger, "victim").state is GangState.EVICTING
    assert ledger.wish_outcome(asked) == answer and len(noted) == (answer is None)
