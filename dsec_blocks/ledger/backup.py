"""Backups: one SQLite file with everything, from either database; itself a ledger that can be opened or restored.

The copy is one consistent state, taken while others write, and appears under its name whole or not at all.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.processes import ProcessId
from dsec_blocks.ledger import schema
from dsec_blocks.ledger.opening import engine_for, migrate
from dsec_blocks.ledger.revision import schema_version
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.errors import LedgerError

_CHUNK_ROWS = 1000
_STAGING = ".dsec-backup-"
_ABANDONED_SECONDS = 86_400.0
"""After this, a half-made copy that another machine left in a shared directory is nobody's."""


class Backup(Transactions):
    """Copying a whole ledger out, and in."""

    def backup(self, path: str | Path) -> None:
        """Write everything to the SQLite file `path`, replacing it. Raises `LedgerError` if it cannot be written."""
        path = Path(path)
        try:
            with _staging(path.absolute().parent, now=self._clock.now()) as folder:
                copy = folder / "ledger.db"
                if self._engine.dialect.name == "sqlite":
                    self._copy_pages(copy)
                else:
                    self._copy_rows(copy)
                copy.chmod(0o600)
                files.sync(copy)
                files.rename(copy, path, at="ledger.backup.write")
        except OSError as error:
            raise LedgerError(f"backup {path}: {error.strerror or error}; an older backup there was kept") from error

    def restore(self, path: str | Path) -> None:
        """Fill this ledger, which must be empty, from a backup of this or an older schema."""
        path = Path(path)
        if not path.is_file():
            raise LedgerError(f"restore {path}: there is no such backup")
        with tempfile.TemporaryDirectory(prefix="dsec-restore-") as folder:
            # A copy, because migrating it must not change the backup.
            copy = Path(folder) / "ledger.db"
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source:
                with closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
            store = Transactions(engine_for(f"sqlite:///{copy}"), clock=self._clock)
            try:
                migrate(store)
                with store.reading() as source_rows, self.transaction(at="ledger.restore") as target_rows:
                    self._refuse_unless_empty(target_rows)
                    _copy_tables(source_rows, target_rows)
                    _advance_sequences(target_rows)
            finally:
                store.close()

    def _copy_pages(self, copy: Path) -> None:
        with self._explained("backup"), closing(sqlite3.connect(str(self._engine.url.database))) as source:
            with closing(sqlite3.connect(copy)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")

    def _copy_rows(self, copy: Path) -> None:
        target = engine_for(f"sqlite:///{copy}")
        store = Transactions(target, clock=self._clock)
        try:
            with self._explained("backup"), self._engine.connect() as connection:
                source = connection.execution_options(isolation_level="REPEATABLE READ")
                version = schema_version(source)
                with store.transaction(at="ledger.backup.copy", any_revision=True) as rows:
                    schema.metadata.create_all(rows)
                    rows.exec_driver_sql(f"CREATE TABLE {schema.VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)")
                    rows.exec_driver_sql(f"INSERT INTO {schema.VERSION_TABLE} VALUES (?)", (version,))
                    _copy_tables(source, rows)
        finally:
            store.close()
        with closing(sqlite3.connect(copy)) as connection_to_copy:
            connection_to_copy.execute("PRAGMA journal_mode=DELETE")

    def _refuse_unless_empty(self, connection: sa.Connection) -> None:
        for table in schema.metadata.sorted_tables:
            if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
                raise LedgerError(f"restore into {self.url}: it is not empty ({table.name}); restore into a new ledger")


def _copy_tables(source: sa.Connection, target: sa.Connection) -> None:
    for table in schema.metadata.sorted_tables:
        for rows in source.execute(sa.select(table)).mappings().partitions(_CHUNK_ROWS):
            target.execute(sa.insert(table), [dict(row) for row in rows])


def _advance_sequences(connection: sa.Connection) -> None:
    if connection.dialect.name != "postgresql":
        return
    for table in schema.metadata.sorted_tables:
        if "id" in table.c:
            highest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
            sequence = sa.func.pg_get_serial_sequence(table.name, "id")
            connection.execute(sa.select(sa.func.setval(sequence, sa.func.coalesce(highest, 1))))


@contextmanager
def _staging(parent: Path, *, now: float) -> Iterator[Path]:
    """A folder beside the backup in which it is made; those that killed backups left there go first."""
    for left in parent.glob(f"{_STAGING}*"):
        if _is_abandoned(left, now=now):
            files.remove_tree(left, at="ledger.backup.sweep")
    own = processes.identify(os.getpid())
    folder = parent / f"{_STAGING}{own.boot_id}.{own.pid}.{own.start_time}.{uuid4().hex[:8]}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        files.remove_tree(folder, at="ledger.backup.clean")


def _is_abandoned(folder: Path, *, now: float) -> bool:
    """Whether the backup that made `folder` is dead; of another machine's (or boot's) only its age tells."""
    try:
        boot_id, pid, start_time, _ = folder.name.removeprefix(_STAGING).split(".")
        maker = ProcessId(pid=int(pid), start_time=int(start_time), boot_id=boot_id)
        if boot_id == processes.boot_id():
            return not processes.is_alive(maker)
        return now - folder.stat().st_mtime > _ABANDONED_SECONDS
    except (ValueError, FileNotFoundError):  # not a name that we give, or gone by now
        return False
