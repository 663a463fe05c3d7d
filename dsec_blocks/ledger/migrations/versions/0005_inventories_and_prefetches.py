"""What each node's cache holds, and the orders to fetch a gang's inputs where it was given a place."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "inventories",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("bandwidth_bytes_per_s", sa.Float),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("bundles", sa.JSON, nullable=False),
    )
    op.create_table(
        "prefetches",
        sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("addresses", sa.JSON, nullable=False),
        sa.Column("ordered_at", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("began_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("updated_at", sa.Float),
        sa.Column("bytes_done", sa.BigInteger, nullable=False),
        sa.Column("bytes_total", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
    )
    op.create_index("prefetches_by_node", "prefetches", ["node", "state"])
