"""One leader a pool; no wall clock makes or unmakes one; a leader that slept is fenced."""

import pytest

from dsec_blocks.ledger import Election, Ledger
from dsec_blocks.model.errors import Fenced
from tests.blocks.ledger.gangs import POOL, waiting
from tests.fixtures.clock import ManualClock

TTL = 5.0


def _candidate(ledger: Ledger, name: str, clock: ManualClock) -> Election:
    return Election(ledger, POOL, name, TTL, clock)


def test_the_first_to_ask_leads_and_the_second_does_not(ledger: Ledger) -> None:
    first = ledger.take_lease(POOL, "a", seen=None)

    assert first == (POOL, "a", 1)
    assert ledger.take_lease(POOL, "b", seen=None) is None
    assert ledger.lease("other") is None


def test_a_lease_is_taken_only_as_it_was_seen(ledger: Ledger) -> None:
    fence = ledger.take_lease(POOL, "a", seen=None)
    assert fence
    seen = ledger.lease(POOL)
    ledger.beat(fence)
    assert ledger.take_lease(POOL, "b", seen=seen) is None, "it beat since"

    taken = ledger.take_lease(POOL, "b", seen=ledger.lease(POOL))

    assert taken == (POOL, "b", 2)
    with pytest.raises(Fenced, match=r"a \(token 1\) no longer leads pool pool: b does \(token 2\)"):
        ledger.beat(fence)


def test_a_leader_that_resigned_is_replaced_at_once_and_cannot_write(ledger: Ledger) -> None:
    fence = ledger.take_lease(POOL, "a", seen=None)
    assert fence
    ledger.resign(fence)
    with pytest.raises(Fenced, match="nobody does"):
        ledger.enqueue(fence, [waiting("x")])

    taken = ledger.take_lease(POOL, "b", seen=None)

    assert taken == (POOL, "b", 2)
    ledger.resign(fence)
    ledger.beat(taken)


def test_a_standby_takes_over_when_the_beat_stood_still_for_the_time_to_live(ledger: Ledger) -> None:
    clock = ManualClock()
    leader, standby = _candidate(ledger, "a", clock), _candidate(ledger, "b", clock)
    assert leader.step() and standby.step() is None

    for _ in range(20):
        clock.advance(1)
        assert leader.step()
        assert standby.step() is None

    clock.advance(TTL - 0.1)
    assert standby.step() is None
    clock.advance(0.2)
    fence = standby.step()
    assert fence == (POOL, "b", 2) == standby.fence
    assert leader.step() is None, "it finds itself fenced and stands by"
    assert leader.fence is None
    clock.advance(1)
    assert standby.step() == fence


def test_a_wall_clock_that_jumps_makes_nobody_leader(ledger: Ledger) -> None:
    clock = ManualClock()
    leader, standby = _candidate(ledger, "a", clock), _candidate(ledger, "b", clock)
    leader.step()
    standby.step()

    for jump in (86_400.0, -7 * 86_400.0, 10 * 365 * 86_400.0):
        clock.seconds += jump
        assert standby.step() is None
        assert leader.step()

    clock.seconds = 0.0
    clock.ticks += TTL + 1
    assert standby.step() is None, "the leader beat since the standby last looked"
    clock.ticks += TTL + 1
    assert standby.step() is not None


def test_a_former_leader_may_lead_again(ledger: Ledger) -> None:
    clock = ManualClock()
    first, second = _candidate(ledger, "a", clock), _candidate(ledger, "b", clock)
    first.step()
    first.resign()
    assert first.fence is None
    assert second.step() == (POOL, "b", 2)
    second.resign()
    second.resign()

    assert first.step() == (POOL, "a", 3)


def test_of_two_standbys_one_takes_over(ledger: Ledger) -> None:
    clock = ManualClock()
    dead, b, c = (_candidate(ledger, name, clock) for name in "abc")
    dead.step()
    b.step()
    c.step()
    clock.advance(TTL + 1)

    assert [bool(b.step()), bool(c.step())] == [True, False]
    clock.advance(TTL + 1)
    assert b.step() and c.step() is None
