"""When the database fails, the ledger says so in one line and nothing is half-done."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from dsec_blocks.ledger import Fence, Ledger, opening
from dsec_blocks.model.errors import Fenced, LedgerError, LedgerUnreachable
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import LATER, POOL, held, known, on, waiting
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import migrated, new_ledger


@pytest.fixture
def sqlite_ledger(tmp_path: Path, clock: ManualClock):
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    yield ledger
    ledger.close()


def _on_every_connection(ledger: Ledger, pragma: str) -> None:
    ledger._engine.dispose()

    @sa.event.listens_for(ledger._engine, "connect")
    def limit(connection, _record) -> None:
        connection.execute(pragma)


def test_a_full_disk_is_one_clear_error_and_the_gang_still_waits(sqlite_ledger: Ledger) -> None:
    ledger = sqlite_ledger
    fence = ledger.take_lease(POOL, "me", seen=None)
    assert fence
    ledger.enqueue(fence, [waiting("a")])
    with ledger.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    _on_every_connection(ledger, f"PRAGMA max_page_count={pages}")
    devices = [f"n{n}/{d}" for n in range(300) for d in range(8)]

    with pytest.raises(LedgerError, match="the disk is full; nothing was written: free space") as caught:
        ledger.admit(fence, "a", on(*devices), expires_at=LATER)

    assert "\n" not in str(caught.value)
    assert known(ledger, "a").state is GangState.WAITING
    assert held(ledger) == set()
    assert ledger.check() == []
    assert ledger.admit(fence, "a", on("n1/0"), expires_at=LATER).attempt == 1, "it goes on once there is room"


def test_a_read_only_database_is_one_clear_error(sqlite_ledger: Ledger) -> None:
    fence = sqlite_ledger.take_lease(POOL, "me", seen=None)
    assert fence
    _on_every_connection(sqlite_ledger, "PRAGMA query_only=ON")

    with pytest.raises(LedgerError, match="the database is read-only; nothing was written"):
        sqlite_ledger.enqueue(fence, [waiting("a")])


def test_a_write_lock_held_too_long_by_another_process_is_one_clear_error(
    tmp_path: Path, clock: ManualClock, monkeypatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.2)
    url = migrated(tmp_path / "ledger.db")
    holder, other = Ledger.open(url, clock=clock), Ledger.open(url, clock=clock)

    with holder.transaction(at="test.hold"):
        with pytest.raises(LedgerError, match="another process has held the write lock for too long"):
            other.wish(POOL, "evict", "a", {}, by="me", why="")

    assert other.wish(POOL, "evict", "a", {}, by="me", why="") == 1
    holder.close()
    other.close()


@pytest.mark.slow
def test_a_read_only_postgres_is_one_clear_error(postgres_url: str, clock: ManualClock) -> None:
    ledger = Ledger.open(postgres_url, clock=clock)
    name = sa.make_url(postgres_url).database
    with ledger.transaction(at="test.alter") as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    ledger.close()
    ledger = Ledger.open(postgres_url, clock=clock)

    with pytest.raises(LedgerError, match="the database is read-only; nothing was written"):
        ledger.take_lease(POOL, "me", seen=None)
    ledger.close()


@pytest.mark.slow
def test_a_broken_connection_is_one_error_and_the_next_call_connects_again(
    postgres_url: str, clock: ManualClock
) -> None:
    ledger, other = Ledger.open(postgres_url, clock=clock), Ledger.open(postgres_url, clock=clock)
    fence = ledger.take_lease(POOL, "me", seen=None)
    assert fence
    with other.transaction(at="test.terminate") as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    with pytest.raises(LedgerUnreachable, match=r"connection broke|does not answer|shutting down"):
        ledger.beat(fence)
    ledger.beat(fence)
    ledger.close()
    other.close()


def test_an_error_in_the_body_undoes_the_body(ledger: Ledger, fence: Fence) -> None:
    with pytest.raises(ZeroDivisionError), ledger.transaction(at="test.body", fence=fence) as connection:
        connection.exec_driver_sql("UPDATE leases SET beat = 77")
        raise ZeroDivisionError
    lease = ledger.lease(POOL)
    assert lease and lease.beat == 1


def test_the_fault_point_surrounds_the_commit(ledger: Ledger, fence: Fence, monkeypatch) -> None:
    monkeypatch.setenv("DSEC_FAULT", "ledger.enqueue:error")
    with pytest.raises(LedgerError, match=r"injected at ledger\.enqueue: not applied"):
        ledger.enqueue(fence, [waiting("a")])
    assert ledger.gang("a") is None

    monkeypatch.setenv("DSEC_FAULT", "ledger.enqueue:lost")
    with pytest.raises(LedgerError, match="applied, answer lost"):
        ledger.enqueue(fence, [waiting("a")])
    assert known(ledger, "a").state is GangState.WAITING


@pytest.mark.parametrize("void", [{"token": 2}, {"token": 0}, {"holder": "somebody else"}, {"pool": "other"}])
def test_a_write_with_a_void_fence_changes_nothing(ledger: Ledger, fence: Fence, void: dict) -> None:
    with pytest.raises(Fenced, match="no longer leads pool"):
        ledger.enqueue(fence._replace(**void), [waiting("a")])
    assert ledger.gang("a") is None
