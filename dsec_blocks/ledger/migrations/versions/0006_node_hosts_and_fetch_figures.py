"""Processors and memory of nodes, and what a node measured while it fetched."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("cpus", sa.Float))
    op.add_column("nodes", sa.Column("memory_bytes", sa.BigInteger))
    op.add_column("prefetches", sa.Column("figures", sa.JSON))
