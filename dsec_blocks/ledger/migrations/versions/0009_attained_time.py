"""What a run has had so far, since when it waits again, and whether it had its lift: what time sharing goes by."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("gangs", sa.Column("attained_seconds", sa.Float, nullable=False, server_default="0"))
    op.add_column("gangs", sa.Column("waiting_since", sa.Float))
    op.add_column("gangs", sa.Column("lifted", sa.Boolean, nullable=False, server_default=sa.false()))
