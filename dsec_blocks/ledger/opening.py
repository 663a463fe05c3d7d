"""From a URL to a database that is of this version: connections set up, schema migrated.

Opening one that is up to date costs two look-ups; Alembic is imported only when there is something to migrate.
"""

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dsec_blocks.ledger.revision import begin_migration, refuse_newer, schema_version, stand_leaders_down
from dsec_blocks.ledger.schema import HEAD
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.errors import LedgerUnreachable

BUSY_SECONDS = 10
"""How long a write waits for the lock another process holds, and how long one may sleep inside a transaction."""
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic's operations go through a global: two threads at once would run on each other's connections."""
_PARSED_POSTGRES = {"postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"}


def engine_for(url: str) -> sa.Engine:
    """An engine for `sqlite:///path` or `postgresql://…`; connects to nothing yet.

    Raises `LedgerUnreachable` for any other URL, or if the folder of a SQLite file cannot be made.
    """
    try:
        parsed = sa.make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    except ArgumentError:
        raise LedgerUnreachable(
            f"ledger {url!r}: not a URL; write for example 'sqlite:///dsec.db' or 'postgresql://user@host/dsec'"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed)
    if parsed.drivername in _PARSED_POSTGRES:
        return _postgres(parsed.set(drivername="postgresql+psycopg"))
    raise LedgerUnreachable(f"ledger {parsed.drivername}: not supported; use sqlite:///path or postgresql://…")


def migrate(store: Transactions) -> None:
    """Bring the database to `HEAD` in one transaction; processes that come at the same time wait and find it done.

    Whoever leads a pool by then leads no longer, since it may be of the version before.
    """
    from alembic import command
    from alembic.config import Config

    with store.transaction(at="ledger.migrate", any_revision=True) as connection:
        begin_migration(connection)
        version = schema_version(connection)
        refuse_newer(version, store.url)
        if version == HEAD:
            return
        if version is not None:
            stand_leaders_down(connection)
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with _ALEMBIC:
            command.upgrade(config, HEAD)


def _sqlite(url: sa.URL) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise LedgerUnreachable("ledger sqlite://: in memory it would not outlive the process; write 'sqlite:///path'")
    if not url.database.startswith("file:"):
        folder = Path(url.database).absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerUnreachable(f"ledger {url}: the folder {folder} cannot be made: {error.strerror}") from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS}, pool_size=8, max_overflow=32)

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        _write_ahead_log(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        read_only = connection.get_execution_options().get("dsec_read_only")
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _write_ahead_log(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for its lock here as it does elsewhere, so the first processes to open a new file collide.
    give_up = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def _postgres(url: sa.URL) -> sa.Engine:
    # A leader stopped inside a transaction would keep the lease's row for ever; the server ends it instead.
    limits = {
        "idle_in_transaction_session_timeout": BUSY_SECONDS * 1000,
        "lock_timeout": (BUSY_SECONDS + 5) * 1000,
        "synchronous_commit": "on",
    }
    arguments = {
        "connect_timeout": 5,
        "application_name": "dsec",
        "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    try:
        return sa.create_engine(url, connect_args=arguments, pool_size=8, max_overflow=32)
    except (NoSuchModuleError, ModuleNotFoundError):
        raise LedgerUnreachable("ledger on PostgreSQL: its driver is missing; pip install 'dsec[postgres]'") from None
