"""The histogram of what has arrived; it begins empty, and what is there already does not count as having arrived."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "arrivals",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
