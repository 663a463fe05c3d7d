"""What a leader does about gangs on the cluster that say a newer DSec has made them."""

import logging
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from benchmarks.cycle_live import loop_of
from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.errors import GangTooNew
from dsec_blocks.model.gangs import GangState, Placement
from dsec_workers.clusters.protocol import GangKey, ObservedGang
from dsec_workers.lifecycle.adoption import adopt
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling import Policy
from tests.blocks.ledger.gangs import known, launching
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.candidates import candidate_of

NEWER = "Pod team/x is of a newer DSec (gang protocol 99, this one knows up to 2): upgrade this worker"


class Showing:
    """A cluster on which there are these gangs of a newer DSec; whatever else is asked of it fails loudly."""

    def __init__(self, *keys: GangKey) -> None:
        self.keys = keys

    async def adopt(self) -> tuple[ObservedGang, ...]:
        nowhere = Placement(members=())
        return tuple(
            ObservedGang(key=key, placement=nowhere, launch={}, events=(), too_new=f"{NEWER} ({key.run_id})")
            for key in self.keys
        )


def term_on(cluster: Showing, ledger: Ledger, fence: Fence, clock: ManualClock) -> Term:
    term = loop_of(ledger, fence, clock, [], Policy()).term
    term.cluster = cast(Any, cluster)
    return term


async def test_whoever_could_create_a_pod_stopped_the_pools_workers_with_a_newer_protocol_number(
    ledger: Ledger, fence: Fence, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    launching(ledger, fence, "ours", "n1/a")
    former = known(ledger, "ours").attempt + 1
    term = term_on(Showing(GangKey("nobody's", 1), GangKey("ours", former)), ledger, fence, clock)
    for _ in range(2):
        await adopt(term)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2 and all("left alone" in line and NEWER in line for line in said), said
    assert known(ledger, "ours").state is GangState.LAUNCHING


async def test_a_leader_steps_back_from_a_gang_of_its_ledger_that_a_newer_worker_has_started(
    ledger: Ledger, fence: Fence, clock: ManualClock, tmp_path: Path
) -> None:
    gang, other = launching(ledger, fence, "theirs", "n1/a"), launching(ledger, fence, "lost", "n1/b")
    ledger.launched(fence, other.run_id, other.attempt, {"adapter": "kubernetes"})
    cluster = Showing(GangKey("nobody's", 1), GangKey("theirs", gang.attempt))
    term = term_on(cluster, ledger, fence, clock)
    with pytest.raises(GangTooNew, match=r"upgrade this worker \(theirs\)"):
        await adopt(term)
    assert known(ledger, "lost").state is GangState.LAUNCHING, "nothing was written before"
    candidate = candidate_of(cluster, ledger, clock, tmp_path)
    async with anyio.create_task_group() as group:
        term.lost = group.cancel_scope.cancel
        await candidate._adopt(term)
    assert isinstance(candidate.refused, GangTooNew)
