"""A run that waits asks for what its deployment says now."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from dsec_blocks.ledger import Fence, Ledger
from dsec_workers.form import default_template
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import Deployment, Run
from tests.blocks.ledger.gangs import POOL, known
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import run, state


class Server:
    """One run that waits, of one deployment that can be edited. It emits no event."""

    def __init__(self) -> None:
        self.version, self.devices = "v1", 4
        self.waits = run(state("SCHEDULED", at=0.0), run_count=0)
        object.__setattr__(self.waits, "deployment_id", "d1")

    async def scheduled(self, pool: str, **_: Any) -> list[Run]:
        return [self.waits]

    async def mark_ready(self, pool: str) -> None:
        pass

    async def deployments(self, ids: Sequence[str]) -> dict[str, Deployment]:
        asks = {"devices_per_node": self.devices}
        return {id: Deployment(id=id, updated=self.version, job_variables=asks, raw={"id": id}) for id in ids}


async def test_an_edited_deployment_was_not_seen_by_a_waiting_run_until_another_run_made_an_event(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    server, intake = Server(), Intake(observe=lambda *_: None, client=SimpleNamespace())  # type: ignore[arg-type, return-value]
    intake.form.template, intake.form.queues = default_template(), ("default",)
    term: Any = SimpleNamespace(
        pool=POOL, ledger=ledger, fence=fence, clock=clock, api=server, runs={}, refused={}, manifests={}, astray=set(),
        forget=lambda _: None,
    )  # fmt: skip
    term.read, term.write = partial(Term.read, term), partial(Term.write, term)
    await intake._sweep(term, clock.now())
    assert known(ledger, "run").request.devices_per_node == 4
    server.version, server.devices = "v2", 2
    clock.advance(20.0)
    await intake._sweep(term, clock.now())
    assert known(ledger, "run").request.devices_per_node == 2
