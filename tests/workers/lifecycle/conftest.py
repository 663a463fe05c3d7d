"""A ledger of one's own, and who leads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.ledger import Ledger
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import clock, fence, new_ledger

__all__ = ["clock", "fence"]


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    yield ledger
    ledger.close()
