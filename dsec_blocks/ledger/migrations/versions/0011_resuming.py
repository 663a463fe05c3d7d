"""Where a gang goes on that makes room by moving, shrinking or growing: reserved for it before it has left."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("gangs", sa.Column("resumes_at", sa.JSON(none_as_null=True)))
