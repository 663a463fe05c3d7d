"""A newer DSec migrates the ledger while older ones run: they write what they had begun, and nothing after that."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec_blocks.ledger import Election, Fence, Ledger
from dsec_blocks.model.errors import Fenced, LedgerTooNew
from dsec_blocks.model.teams import Team
from tests.blocks.ledger.gangs import POOL, waiting
from tests.fixtures.clock import ManualClock
from tests.fixtures.newer import migrate_as_newer
from tests.fixtures.postgres import until_blocked

TTL = 5.0


def test_a_leader_of_before_a_migration_writes_nothing_after_it_and_does_not_lead_again(
    ledger: Ledger, ledger_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    leader, standby = (Election(ledger, POOL, name, TTL, clock) for name in ("a", "b"))
    fence = leader.step()
    assert fence is not None and standby.step() is None
    newest = migrate_as_newer(ledger_url, tmp_path)

    with pytest.raises(Fenced):
        ledger.enqueue(fence, [waiting("x")])
    for candidate in (leader, standby):
        with pytest.raises(
            LedgerTooNew, match=f"its schema is {newest}, this DSec knows up to .*; nothing was touched$"
        ):
            candidate.step()

    assert ledger.gangs(POOL) == []
    lease = ledger.lease(POOL)
    assert lease is not None and (lease.holder, lease.token, lease.released) == ("a", 1, True), "free for the newer one"


@pytest.mark.parametrize(
    "write",
    [
        lambda ledger: ledger.put_team(POOL, Team(name="ml", nominal_devices=1)),
        lambda ledger: ledger.take_lease(POOL, "a", seen=None),
        lambda ledger: ledger.resign(Fence(POOL, "a", 1)),
    ],
    ids=["put_team", "take_lease", "resign"],
)
def test_what_needs_no_leader_is_refused_too(
    ledger: Ledger, ledger_url: str, tmp_path: Path, write: Callable[[Ledger], object]
) -> None:
    migrate_as_newer(ledger_url, tmp_path)
    with pytest.raises(LedgerTooNew, match="upgrade dsec"):
        write(ledger)
    assert (ledger.teams(POOL).keys(), ledger.lease(POOL)) == ({"default"}, None)


@pytest.mark.slow
@pytest.mark.parametrize("fenced", [True, False], ids=["a leader's", "anybody's"])
def test_a_migration_waits_for_the_writes_that_are_under_way_and_the_next_ones_wait_for_it(
    migrated_postgres_url: str, clock: ManualClock, tmp_path: Path, fenced: bool
) -> None:
    ledger = Ledger.open(migrated_postgres_url, clock=clock)
    fence = ledger.take_lease(POOL, "a", seen=None)
    assert fence is not None
    migration = threading.Thread(target=migrate_as_newer, args=(migrated_postgres_url, tmp_path))
    with ledger.transaction(at="test.hold", fence=fence if fenced else None):
        migration.start()
        until_blocked(migrated_postgres_url)
        if fenced:
            ledger.enqueue(fence, [waiting("x")])
        else:
            ledger.put_team(POOL, Team(name="ml", nominal_devices=1))
    migration.join()
    assert [gang.run_id for gang in ledger.gangs(POOL)] == (["x"] if fenced else [])
    assert ("ml" in ledger.teams(POOL)) is not fenced
    with pytest.raises(Fenced):
        ledger.beat(fence)
    ledger.close()


def test_a_migration_that_was_done_already_leaves_the_leader_alone(
    ledger: Ledger, ledger_url: str, fence: Fence, clock: ManualClock
) -> None:
    ledger.migrate()
    Ledger.open(ledger_url, clock=clock).close()
    ledger.beat(fence)
