"""One node fills an object; a silent one is taken over, and finds out."""

import pytest

from dsec_blocks.ledger.ledger import Ledger
from dsec_blocks.model.errors import Fenced


def test_only_one_of_two_takes_an_object(ledger: Ledger) -> None:
    assert ledger.take_fill("k", "a", seen=None) is not None
    assert ledger.take_fill("k", "b", seen=None) is None


def test_a_filler_that_beat_since_it_was_seen_is_not_taken_over(ledger: Ledger) -> None:
    fence = ledger.take_fill("k", "a", seen=None)
    assert fence is not None
    seen = ledger.fills(["k"])["k"]
    assert ledger.beat_fills([fence]) == []
    assert ledger.take_fill("k", "b", seen=seen) is None


def test_a_filler_that_was_taken_over_finds_out_at_its_next_beat(ledger: Ledger) -> None:
    stopped = ledger.take_fill("k", "a", seen=None)
    assert stopped is not None
    successor = ledger.take_fill("k", "b", seen=ledger.fills(["k"])["k"])
    assert successor is not None and successor.token == stopped.token + 1
    assert ledger.beat_fills([stopped, successor]) == [stopped]
    with pytest.raises(Fenced, match="another node took over"):
        ledger.end_fill(stopped)
    ledger.end_fill(successor)
    assert ledger.fills()["k"].ended


def test_an_object_that_was_filled_can_be_filled_again(ledger: Ledger) -> None:
    fence = ledger.take_fill("k", "a", seen=None)
    assert fence is not None
    ledger.end_fill(fence)
    assert ledger.take_fill("k", "b", seen=None) is not None


def test_a_use_is_remembered(ledger: Ledger) -> None:
    fence = ledger.take_fill("k", "a", seen=None)
    assert fence is not None
    before = ledger.fills()["k"].used_at
    ledger.touch_fills(["k", "unknown"])
    assert ledger.fills()["k"].used_at >= before
