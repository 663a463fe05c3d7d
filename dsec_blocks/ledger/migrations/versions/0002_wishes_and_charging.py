"""Wishes of the command line, and usage that is charged up to the instant a device is released.

A device held while the migration runs is charged from its gang's admission, as if nothing had been accrued yet:
revision 0001 kept no mark of how far it had charged.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "wishes",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("args", sa.JSON, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("fulfilled_at", sa.Float),
        sa.Column("outcome", sa.Text),
    )
    op.create_index("wishes_by_pool", "wishes", ["pool", "fulfilled_at"])
    op.add_column("reservations", sa.Column("charged_until", sa.Float))
    op.execute(
        "UPDATE reservations SET charged_until = "
        "(SELECT admitted_at FROM gangs WHERE gangs.run_id = reservations.run_id) WHERE turn = 0"
    )
