"""What a new leader meets while it takes over."""

from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.cycle_live import loop_of
from dsec_blocks.ledger import Fence, Ledger
from dsec_workers.lifecycle import leading
from dsec_workers.scheduling import Policy
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.candidates import candidate_of


class OddCluster:
    """Its first answers cannot be understood."""

    def __init__(self, *, odd: int) -> None:
        self.odd = odd
        self.asked = 0

    async def adopt(self) -> tuple[()]:
        self.asked += 1
        if self.asked <= self.odd:
            raise KeyError("nodeName")
        return ()


async def test_a_worker_ended_because_one_gang_on_the_cluster_was_described_oddly(
    ledger: Ledger, fence: Fence, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(leading, "BEAT_SECONDS", 0.0)
    cluster = OddCluster(odd=2)
    candidate = candidate_of(cluster, ledger, clock, tmp_path)
    term = loop_of(ledger, fence, clock, [], Policy()).term
    term.cluster = cast(Any, cluster)
    await candidate._adopt(term)
    assert cluster.asked == 3
    assert caplog.text.count("adoption will be tried again") == 2
