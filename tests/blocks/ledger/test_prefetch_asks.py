"""A prefetch asked for by hand is one ask to several nodes, followed and taken back by its name."""

from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.prefetch_asks import KEEP_SECONDS
from dsec_blocks.ledger.prefetches import PrefetchState
from tests.fixtures.clock import ManualClock

URI = "s3://models/llama"


def test_each_node_finds_its_part_and_says_how_far_it_is(ledger: Ledger) -> None:
    name = ledger.ask_prefetch([URI], ["n1", "n2"], by="ann")
    (mine,) = ledger.asked_prefetches("n1")
    assert (mine.run_id, mine.attempt, mine.addresses, mine.state) == (name, 0, (URI,), PrefetchState.ORDERED)
    told = {"bytes_done": 5, "bytes_total": 10, "at": 1.0}
    assert ledger.asked_progress("n1", name, state=PrefetchState.FETCHING, **told)
    assert ledger.asked_progress("n1", name, state=PrefetchState.DONE, **told, figures={"fetch": 2.0})
    assert not ledger.asked_prefetches("n1") and ledger.asked_prefetches("n2")
    first, second = ledger.prefetch_ask(name)
    assert (first.state, first.bytes_done, first.figures) == (PrefetchState.DONE, 5, {"fetch": 2.0})
    assert second.is_open


def test_what_was_taken_back_is_no_longer_wanted_and_what_is_done_stays_done(ledger: Ledger) -> None:
    name = ledger.ask_prefetch([URI], ["n1", "n2"], by="ann")
    told = {"bytes_done": 1, "bytes_total": 1, "at": 1.0}
    assert ledger.asked_progress("n1", name, state=PrefetchState.DONE, **told)
    assert ledger.withdraw_ask(name) == 1
    assert [one.state for one in ledger.prefetch_ask(name)] == [PrefetchState.DONE, PrefetchState.WITHDRAWN]
    assert not ledger.asked_progress("n2", name, state=PrefetchState.FETCHING, **told)
    assert ledger.withdraw_ask(name) == 0


def test_an_ask_that_ended_long_ago_is_forgotten_when_somebody_asks_again(ledger: Ledger, clock: ManualClock) -> None:
    old = ledger.ask_prefetch([URI], ["n1"], by="ann")
    ledger.withdraw_ask(old)
    clock.advance(KEEP_SECONDS + 1)
    ledger.ask_prefetch([URI], ["n1"], by="bob")
    assert ledger.prefetch_ask(old) == []


def test_asks_are_no_runs_orders_and_break_no_rule(ledger: Ledger) -> None:
    ledger.ask_prefetch([URI], ["n1"], by="ann")
    assert ledger.prefetches_for("n1") == []
    assert ledger.check() == []
