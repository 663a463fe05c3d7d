"""What a database error means for a person: one line that says what happened, where, and what to do.

Whatever failed, nothing was applied: every write is one transaction.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dsec_blocks.model.errors import LedgerError, LedgerUnreachable

_DISK_FULL = "the disk is full; nothing was written: free space where the database is, the work then goes on"
_READ_ONLY = "the database is read-only; nothing was written: check the owner and the mount of its files"
_BUSY = "another process has held the write lock for too long; nothing was written: it is tried again"
_NOT_A_LEDGER = "the file is damaged or is no SQLite database: restore a backup (`dsec ledger backup` made it)"

_SQLITE = (
    ("SQLITE_FULL", LedgerError, _DISK_FULL),
    ("SQLITE_READONLY", LedgerError, _READ_ONLY),
    ("SQLITE_BUSY", LedgerError, _BUSY),
    ("SQLITE_LOCKED", LedgerError, _BUSY),
    ("SQLITE_CORRUPT", LedgerError, _NOT_A_LEDGER),
    ("SQLITE_NOTADB", LedgerError, _NOT_A_LEDGER),
    ("SQLITE_CANTOPEN", LedgerUnreachable, "the file cannot be opened: check the folder and its permissions"),
    ("SQLITE_IOERR", LedgerError, "the disk reports an I/O error; nothing was written: check the disk and its space"),
)
_POSTGRES = (
    ("53100", LedgerError, _DISK_FULL),
    ("25006", LedgerError, _READ_ONLY),
    ("55P03", LedgerError, _BUSY),
    ("25P03", LedgerError, "this process slept inside a transaction, which the server ended; nothing was written"),
    ("57P", LedgerUnreachable, "the server is shutting down: it is tried again"),
    ("08", LedgerUnreachable, "the connection broke: it is tried again"),
)


def explain(error: SQLAlchemyError | OSError, url: sa.URL) -> LedgerError:
    """The `LedgerError` to raise for a database error (or for a failed answer of the commit)."""
    where = f"ledger {url.render_as_string(hide_password=True)}"
    if isinstance(error, PoolTimeout):
        return LedgerError(f"{where}: all connections are in use: {error}")
    if not isinstance(error, DBAPIError):
        return LedgerError(f"{where}: {_first_line(error)}")
    cause: Any = error.orig
    known = _SQLITE if url.get_backend_name() == "sqlite" else _POSTGRES
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
    for prefix, kind, text in known:
        if code.startswith(prefix):
            return kind(f"{where}: {text}")
    if error.connection_invalidated or (not code and type(cause).__name__ == "OperationalError"):
        return LedgerUnreachable(f"{where} does not answer: {_first_line(cause)}; check the URL and the server")
    return LedgerError(f"{where}: {_first_line(cause)}")


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
