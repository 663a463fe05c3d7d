"""A backup is one file with everything, whole or not there, and makes an equal ledger on either database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dsec_blocks.ledger import Decision, Fence, Ledger, schema
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.teams import Team
from tests.blocks.ledger.gangs import POOL, admitted, known, running, waiting
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import migrated


def _everything(ledger: Ledger) -> dict[str, list[dict]]:
    with ledger.reading() as connection:
        return {
            table.name: [
                dict(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for table in schema.metadata.sorted_tables
        }


@pytest.fixture
def full(ledger: Ledger, fence: Fence) -> Ledger:
    ledger.put_team(POOL, Team(name="ml", nominal_devices=4, borrow_devices=None, weight=1.5))
    device = Device(uuid="n1/0", node="n1", index=0, model="H100", memory_bytes=1 << 37)
    ledger.put_nodes(fence, [Node(name="n1", devices=(device,), labels={"ü": "é"})])
    ledger.enqueue(fence, [waiting(f"r{n}") for n in range(2500)])
    running(ledger, fence, "v", "n1/0")
    admitted(ledger, fence, "b", "n1/0", victims=("v",))
    ledger.accrue(fence, 1_000_100.0)
    ledger.put_shadows(fence, [{"resource_pool": "H100", "start": 1.5}])
    ledger.decide(fence, [Decision(at=1, pool=POOL, run_id=None, stage="s", outcome="o", why="w", detail={"a": [1]})])
    ledger.wish(POOL, "drain", None, {"node": "n1"}, by="me", why="fan")
    return ledger


@pytest.fixture
def empty(request: pytest.FixtureRequest, ledger_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    """Another, empty ledger on the same kind of database."""
    url = migrated(tmp_path / "restored.db")
    if ledger_url.startswith("postgresql"):
        parsed = sa.make_url(ledger_url)
        admin = sa.create_engine(parsed.set(drivername="postgresql+psycopg", database="postgres"))
        name = f"{parsed.database}_restored"
        with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        admin.dispose()
        url = parsed.set(database=name).render_as_string(hide_password=False)
    ledger = Ledger.open(url, clock=clock)
    yield ledger
    ledger.close()


def test_a_backup_opens_as_a_ledger_that_equals_the_original(full: Ledger, tmp_path: Path, clock: ManualClock) -> None:
    full.backup(tmp_path / "backup.db")

    copy = Ledger.open(f"sqlite:///{tmp_path}/backup.db", clock=clock, migrate=False)
    assert copy.version() == full.version()
    assert _everything(copy) == _everything(full)
    assert copy.check() == []
    copy.close()
    with sa.create_engine(f"sqlite:///{tmp_path}/backup.db").connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left beside it"


def test_a_restored_ledger_equals_the_original_and_goes_on_from_it(
    full: Ledger, empty: Ledger, fence: Fence, tmp_path: Path
) -> None:
    full.backup(tmp_path / "backup.db")

    empty.restore(tmp_path / "backup.db")

    assert _everything(empty) == _everything(full)
    assert empty.check() == []
    assert empty.wish(POOL, "evict", "v", {}, by="me", why="") == 2
    empty.leave(fence, "v", 1, {"kind": "evicted"})
    assert known(empty, "v").state is GangState.LEAVING
    assert known(full, "v").state is GangState.EVICTING


def test_a_ledger_that_is_not_empty_is_not_restored_into(full: Ledger, tmp_path: Path) -> None:
    full.backup(tmp_path / "backup.db")
    before = _everything(full)

    with pytest.raises(LedgerError, match="it is not empty"):
        full.restore(tmp_path / "backup.db")

    assert _everything(full) == before


def test_a_backup_replaces_an_older_one_whole_or_not_at_all(full: Ledger, tmp_path: Path, clock, monkeypatch) -> None:
    path = tmp_path / "backup.db"
    full.backup(path)
    first = path.read_bytes()
    full.wish(POOL, "evict", "a", {}, by="me", why="")

    monkeypatch.setenv("DSEC_FAULT", "ledger.backup.write:error")
    with pytest.raises(LedgerError, match="an older backup there was kept"):
        full.backup(path)
    assert path.read_bytes() == first
    monkeypatch.delenv("DSEC_FAULT")

    full.backup(path)
    copy = Ledger.open(f"sqlite:///{path}", clock=clock)
    assert len(copy.wishes(POOL)) == 2
    copy.close()


def test_a_backup_that_cannot_be_written_or_found_says_so(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"backup .*: No such file or directory"):
        ledger.backup(tmp_path / "no" / "folder" / "backup.db")
    with pytest.raises(LedgerError, match="there is no such backup"):
        ledger.restore(tmp_path / "backup.db")
