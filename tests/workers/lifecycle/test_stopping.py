"""A run whose end was asked for is stopped, however often its cluster has to be asked."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.lifecycle import cancellations
from dsec_workers.lifecycle.term import Term
from tests.blocks.ledger.gangs import POOL, known, running, waiting
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import run, state


class Asked:
    """A cluster that does not answer at first, and the term that asks it to stop a run's gang."""

    def __init__(self, ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
        self.key = GangKey("run", running(ledger, fence, "run", "n1/0").attempt)
        self.is_away = True
        self.stopped: list[GangKey] = []
        self.term: Any = SimpleNamespace(
            ledger=ledger, fence=fence, clock=clock, cluster=SimpleNamespace(stop=self._stop), gangs={}, astray=set(),
            stopping=set(), stopped_for={}, over_since={}, settings=SimpleNamespace(linger_seconds=0.0),
            decide=lambda *_, **__: None,
        )  # fmt: skip
        self.term.read = partial(Term.read, self.term)

    async def _stop(self, key: GangKey, _grace_seconds: float) -> None:
        if self.is_away:
            raise ClusterError("it does not answer")
        self.stopped.append(key)

    async def look(self, kind: str) -> None:
        await cancellations.observe(self.term, "run", run(state(kind)))


@pytest.mark.parametrize("kind", ["CANCELLING", "CANCELLED", "COMPLETED"])
async def test_a_cancelled_run_ran_on_for_ever_after_its_cluster_failed_to_stop_it_once(
    ledger: Ledger, fence: Fence, clock: ManualClock, kind: str
) -> None:
    asked = Asked(ledger, fence, clock)
    with pytest.raises(ClusterError):
        await asked.look(kind)
    asked.is_away = False
    await asked.look(kind)
    assert asked.stopped == [asked.key]
    await asked.look(kind)  # once it has been asked, the cluster sees to it
    assert asked.stopped == [asked.key]


async def test_a_passer_left_for_a_head_that_was_cancelled_after_taking_its_notice_back_had_failed_once(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    passer = running(ledger, fence, "passer", "n1/0")
    ledger.enqueue(fence, [waiting("run")])
    ledger.evict(fence, ["passer"], why="recalled", for_run="run")
    answers: list[bool | ClusterError] = [ClusterError("it does not answer"), True]

    async def withdraw(_: GangKey) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    key = GangKey("passer", passer.attempt)
    term: Any = SimpleNamespace(
        pool=POOL, ledger=ledger, fence=fence, clock=clock, cluster=SimpleNamespace(withdraw=withdraw), astray=set(),
        notices={key: None}, leave_by={}, leaving_soon=set(), forget=lambda _: None,
    )  # fmt: skip
    term.read, term.write = partial(Term.read, term), partial(Term.write, term)
    with pytest.raises(ClusterError):
        await cancellations.observe(term, "run", run(state("CANCELLED")))
    assert term.astray == {"run"}  # out of every plan, and looked at again
    await cancellations.observe(term, "run", run(state("CANCELLED")))
    assert known(ledger, "passer").state is GangState.RUNNING
    assert known(ledger, "run").state is GangState.ENDED and not term.astray
