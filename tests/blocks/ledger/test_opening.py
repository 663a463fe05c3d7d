"""A ledger opens quickly, migrates whole or not at all, and never touches what a newer DSec wrote."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from dsec_blocks.ledger import Ledger, schema
from dsec_blocks.ledger.opening import engine_for
from dsec_blocks.model.errors import LedgerError, LedgerTooNew, LedgerUnreachable
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import POOL
from tests.fixtures.clock import ManualClock

MIGRATIONS = Path(schema.__file__).parent / "migrations"


def _at_revision(url: str, revision: str) -> sa.Engine:
    engine = engine_for(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
    return engine


def test_the_migrations_make_the_schema_that_the_code_expects(ledger: Ledger) -> None:
    with ledger.transaction(at="test.compare") as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == schema.REVISIONS


def test_a_new_ledger_is_at_the_newest_revision(ledger: Ledger) -> None:
    assert ledger.version() == schema.HEAD
    assert not ledger.needs_migration()
    ledger.migrate()


def test_a_ledger_of_the_first_revision_is_migrated_with_what_is_in_it(ledger_url: str, clock: ManualClock) -> None:
    old = _at_revision(ledger_url, "0001")
    with old.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO gangs (run_id, name, pool, team, request, state, submitted_at, eligible_at, attempt,"
                " placement, admitted_at, metrics, has_on_evict, evictions, infrastructure_restarts, launch, outcome)"
                " VALUES ('a', 'a', 'pool', 'ml', :request, 'running', 1, 2, 3, :placement, :admitted, '{}', :no, 4, 0,"
                " '{}', '{}')"
            ),
            {
                "request": '{"nodes": 1, "devices_per_node": 2, "sharing": "auto", "topology": "preferred",'
                ' "kind": "training", "inputs": []}',
                "placement": '[{"node": "n1", "devices": ["n1/0", "n1/1"]}]',
                "admitted": clock.now() - 60,
                "no": False,
            },
        )
        connection.execute(
            sa.text(
                "INSERT INTO reservations (device, turn, run_id, attempt, pool, node, state) VALUES"
                " ('n1/0', 0, 'a', 3, 'pool', 'n1', 'bound'), ('n1/1', 0, 'a', 3, 'pool', 'n1', 'bound')"
            )
        )
        connection.execute(sa.text("INSERT INTO leases VALUES ('pool', 'me', 7, 9, :no)"), {"no": False})
    old.dispose()

    untouched = Ledger.open(ledger_url, clock=clock, migrate=False)
    assert untouched.needs_migration() and untouched.version() == "0001"
    untouched.close()
    ledger = Ledger.open(ledger_url, clock=clock)

    assert ledger.version() == schema.HEAD
    [gang] = ledger.gangs(POOL)
    assert (gang.state, gang.attempt, gang.evictions, gang.request.devices) == (GangState.RUNNING, 3, 4, 2)
    assert ledger.check() == []
    lease = ledger.lease(POOL)
    assert lease is not None and lease.token == 7
    fence = ledger.take_lease(POOL, "next", seen=lease)
    assert fence is not None and fence.token == 8
    ledger.leave(fence, "a", 3, {})
    assert ledger.usage(POOL) == {"ml": pytest.approx(120.0)}, "charged from the admission on"
    assert ledger.wishes(POOL) == []
    ledger.close()


def test_a_ledger_of_the_second_revision_keeps_its_usage_and_its_ended_gangs(
    ledger_url: str, clock: ManualClock
) -> None:
    old = _at_revision(ledger_url, "0002")
    with old.begin() as connection:
        connection.execute(sa.text("INSERT INTO usage VALUES ('pool', 'ml', 120.0)"))
        connection.execute(sa.text("INSERT INTO teams VALUES ('pool', 'ml', 4, NULL, 1.0, 50)"))
        connection.execute(
            sa.text(
                "INSERT INTO gangs (run_id, name, pool, team, request, state, submitted_at, eligible_at, attempt,"
                " launched_at, metrics, has_on_evict, evictions, infrastructure_restarts, launch, outcome)"
                " VALUES ('a', 'a', 'pool', 'ml', :request, 'ended', 1, 2, 1, 300, '{}', :no, 0, 0, '{}', '{}')"
            ),
            {
                "request": '{"devices_per_node": 2, "sharing": "auto", "topology": "preferred", "kind": "training",'
                ' "inputs": []}',
                "no": False,
            },
        )
        connection.execute(
            sa.text(
                "INSERT INTO wishes (pool, kind, args, \"by\", why, at) VALUES ('pool', 'drain', '{\"node\": \"n1\"}',"
                " 'ops', 'fan', 5)"
            )
        )
        connection.execute(sa.text("INSERT INTO leases VALUES ('pool', 'me', 1, 1, :yes)"), {"yes": True})
    old.dispose()

    ledger = Ledger.open(ledger_url, clock=clock)
    assert ledger.usage(POOL) == {"ml": 120.0}
    assert ledger.decayed_usage(POOL, clock.now(), half_life_seconds=60.0) == {"ml": 120.0}, "none has decayed yet"
    assert (ledger.teams(POOL)["ml"].parent, ledger.teams(POOL)["ml"].lend_devices) == (None, None)
    [gang] = ledger.gangs(POOL)
    assert (gang.created_by, gang.tags, gang.ended_at) == ("", (), 300.0)
    [wish] = ledger.wishes(POOL)
    assert wish.kind == "drain" and wish.taken_up_at is None
    fence = ledger.take_lease(POOL, "next", seen=None)
    assert fence is not None
    assert ledger.prune(fence, ended_before=clock.now(), decided_before=clock.now()).gangs == 1
    assert ledger.check() == []
    ledger.close()


def test_a_database_of_a_newer_version_is_refused_with_both_versions(
    ledger: Ledger, ledger_url: str, clock, statements
):
    statements(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0999'")

    for migrate in (True, False):
        with pytest.raises(
            LedgerTooNew, match=rf"its schema is 0999, this DSec knows up to {schema.HEAD}: upgrade dsec"
        ):
            Ledger.open(ledger_url, clock=clock, migrate=migrate)

    with pytest.raises(LedgerTooNew):
        ledger.migrate()
    assert ledger.version() == "0999"


def test_a_migration_that_fails_leaves_nothing_behind(ledger_url: str, clock: ManualClock, monkeypatch) -> None:
    _at_revision(ledger_url, "0001").dispose()
    monkeypatch.setenv("DSEC_FAULT", "ledger.migrate:error")
    with pytest.raises(LedgerError, match="not applied"):
        Ledger.open(ledger_url, clock=clock)
    monkeypatch.delenv("DSEC_FAULT")

    ledger = Ledger.open(ledger_url, clock=clock, migrate=False)
    assert ledger.version() == "0001"
    with ledger.reading() as connection:
        assert not sa.inspect(connection).has_table("wishes")
    ledger.close()


@pytest.mark.slow
def test_many_processes_may_open_a_new_ledger_at_once(ledger_url: str) -> None:
    program = (
        "import sys; from dsec_blocks.ledger import Ledger; from dsec_blocks.gateways.clock import SystemClock\n"
        "ledger = Ledger.open(sys.argv[1], clock=SystemClock()); print(ledger.version())"
    )

    def opened(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, ledger_url], capture_output=True, text=True)

    with ThreadPoolExecutor(5) as threads:
        done = list(threads.map(opened, range(5)))

    assert [(d.returncode, d.stdout.strip()) for d in done] == [(0, schema.HEAD)] * 5, [d.stderr for d in done]


def test_a_ledger_that_is_up_to_date_opens_without_the_migration_machinery(ledger: Ledger, ledger_url: str) -> None:
    program = (
        "import sys; from dsec_blocks.ledger import Ledger; from dsec_blocks.gateways.clock import SystemClock\n"
        "Ledger.open(sys.argv[1], clock=SystemClock()); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, ledger_url], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no url at all", "not a URL; write for example 'sqlite:///dsec.db'"),
        ("mysql://h/d", "ledger mysql: not supported"),
        ("sqlite://", "in memory it would not outlive the process"),
        ("sqlite:////proc/nowhere/ledger.db", "the folder /proc/nowhere cannot be made"),
        ("postgresql://dsec:secret@127.0.0.1:1/dsec", r"dsec:\*\*\*@127.0.0.1:1/dsec does not answer"),
        ("postgres:///dsec?host=/nowhere", "does not answer"),
    ],
)
def test_a_ledger_that_cannot_be_reached_says_so_in_one_line(url: str, message: str, clock: ManualClock) -> None:
    began = time.monotonic()
    with pytest.raises(LedgerUnreachable, match=message) as caught:
        Ledger.open(url, clock=clock)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)
    assert time.monotonic() - began < 60


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "ledger.db").write_text("this is a shopping list, " * 100)
    with pytest.raises(LedgerError, match="damaged or is no SQLite database"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db", clock=clock)


@pytest.mark.slow
def test_a_postgres_database_that_does_not_exist_is_named(postgres_url: str, clock: ManualClock) -> None:
    with pytest.raises(LedgerUnreachable, match=r'database "nothing_\w+" does not exist; check the URL'):
        Ledger.open(postgres_url.replace("/dsec_", "/nothing_"), clock=clock)


def test_sqlite_commits_reach_the_disk_and_readers_do_not_wait(tmp_path: Path, clock: ManualClock) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/a/b/ledger.db", clock=clock)
    with ledger.reading() as connection:
        pragmas = {p: connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    with ledger.transaction(at="test.hold"), ThreadPoolExecutor(1) as other:
        assert other.submit(ledger.teams, POOL).result(timeout=2)
    ledger.close()
