"""In which of its pool's transactions each gang was last written: a leader then reads again only what has changed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("leases", sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("gangs", sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("gangs_by_change", "gangs", ["pool", "changed"])
    op.create_index("evictions_by_run", "evictions", ["run_id"])
