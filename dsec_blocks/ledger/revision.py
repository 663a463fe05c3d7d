"""The schema revision of a database, and the refusal of one that a newer DSec has made.

A process outlives the schema that it was written for: a newer DSec migrates the ledger while it runs. So this is asked
when a ledger is opened and again by every write that no fence guards. A migration releases all leases first, which
voids every fence, so a leader of before is refused when it wants to lead again.
"""

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.model.errors import LedgerTooNew

_MIGRATION_LOCK = 0x64736563


def schema_version(connection: sa.Connection) -> str | None:
    """The revision of the database; None if there is no ledger in it yet."""
    if not sa.inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    return _recorded(connection)


def refuse_newer(version: str | None, url: str) -> None:
    """Raise `LedgerTooNew` for a revision that this version of DSec does not know."""
    if version is not None and version not in schema.REVISIONS:
        raise LedgerTooNew(
            f"ledger {url}: its schema is {version}, this DSec knows up to {schema.HEAD}: upgrade dsec "
            "(pip install --upgrade dsec); nothing was touched"
        )


def keep_revision(connection: sa.Connection, url: str) -> None:
    """Keep the schema as it is until the transaction ends. Raises `LedgerTooNew` where a newer DSec has migrated it."""
    if connection.dialect.name == "postgresql":  # SQLite's one write lock does it
        connection.execute(sa.text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _MIGRATION_LOCK})
    refuse_newer(_recorded(connection), url)


def begin_migration(connection: sa.Connection) -> None:
    """Wait for the writes that are under way; those that come later wait for the end of this transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})


def stand_leaders_down(connection: sa.Connection) -> None:
    """Void every leader's fence, after the last transaction that it has open."""
    connection.execute(sa.update(schema.leases).values(released=True))


def _recorded(connection: sa.Connection) -> str | None:
    return connection.execute(sa.text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar_one_or_none()
