"""How long runs have lasted, and what that makes one expect of others; it begins empty."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "durations",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("history", sa.Text, primary_key=True),
        sa.Column("seconds", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.add_column("gangs", sa.Column("deployment", sa.Text, nullable=False, server_default=""))
    op.add_column("gangs", sa.Column("expected_seconds", sa.Float))
