"""Backups: one SQLite file with everything, from either database; itself a ledger that can be opened or restored.

The copy is one consistent state, taken while others write, and appears under its name whole or not at all.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from dsec_blocks.gateways import files
from dsec_blocks.ledger import schema
from dsec_blocks.ledger.opening import engine_for, migrate, schema_version
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.errors import LedgerError

_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 1000


class Backup(Transactions):
    """Copying a whole ledger out, and in."""

    def backup(self, path: str | Path) -> None:
        """Write everything to the SQLite file `path`, replacing it. Raises `LedgerError` if it cannot be written."""
        path = Path(path)
        try:
            with tempfile.TemporaryDirectory(prefix=".dsec-backup-", dir=path.absolute().parent) as folder:
                copy = Path(folder) / "ledger.db"
                if self._engine.dialect.name == "sqlite":
                    self._copy_pages(copy)
                else:
                    self._copy_rows(copy)
                files.write(path, _chunks(copy), at="ledger.backup.write", mode=0o600)
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
        with self._explained(), closing(sqlite3.connect(str(self._engine.url.database))) as source:
            with closing(sqlite3.connect(copy)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")

    def _copy_rows(self, copy: Path) -> None:
        target = engine_for(f"sqlite:///{copy}")
        store = Transactions(target, clock=self._clock)
        try:
            with self._explained(), self._engine.connect() as connection:
                source = connection.execution_options(isolation_level="REPEATABLE READ")
                version = schema_version(source)
                with store.transaction(at="ledger.backup.copy") as rows:
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


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
