"""Prefetches that somebody asked for by hand, of nodes of their choice."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "prefetch_asks",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("addresses", sa.JSON, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("ordered_at", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("bytes_done", sa.BigInteger, nullable=False),
        sa.Column("bytes_total", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("figures", sa.JSON),
    )
    op.create_index("prefetch_asks_by_node", "prefetch_asks", ["node", "state"])
