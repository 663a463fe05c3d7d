"""Of a device which card it is a slice of, and how it is cut; how often gangs have lately failed on each node."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("devices", sa.Column("slice_of", sa.Text, nullable=False, server_default=""))
    op.add_column("devices", sa.Column("profile", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "node_failures",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
