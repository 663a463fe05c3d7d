"""Until when a run that passed the head of line may stay: whoever leads next has to know it too."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("gangs", sa.Column("conditional_until", sa.Float))
