"""Runs the revisions inside the one transaction that `opening.migrate` has begun, so that they apply whole or not."""

from alembic import context

from dsec_blocks.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
