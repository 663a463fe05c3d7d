"""A ledger of one's own, and who leads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.ledger import Fence, Ledger
from tests.blocks.ledger.gangs import POOL
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    yield ledger
    ledger.close()


@pytest.fixture
def fence(ledger: Ledger) -> Fence:
    fence = ledger.take_lease(POOL, "leader", seen=None)
    assert fence is not None
    return fence
