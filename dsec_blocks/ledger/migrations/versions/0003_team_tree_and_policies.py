"""The tree of teams, who created a run, usage by GPU model that decays, policies, and orders that stand.

Usage that was counted before has no model, so it counts like a GPU of weight 1; none of it has decayed yet.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("teams", sa.Column("lend_devices", sa.Integer))
    op.add_column("teams", sa.Column("parent", sa.Text))
    op.add_column("teams", sa.Column("user_devices", sa.Integer))
    op.add_column("gangs", sa.Column("created_by", sa.Text, nullable=False, server_default=""))
    op.add_column("gangs", sa.Column("tags", sa.JSON))
    op.add_column("gangs", sa.Column("ended_at", sa.Float))
    op.execute("UPDATE gangs SET ended_at = COALESCE(launched_at, eligible_at) WHERE state = 'ended'")
    op.add_column("wishes", sa.Column("taken_up_at", sa.Float))
    op.create_table(
        "policies",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("body", sa.JSON),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("one_policy_a_version", "policies", ["pool", "version"], unique=True)
    op.rename_table("usage", "usage_before")
    op.create_table(
        "usage",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("team", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("device_seconds", sa.Float, nullable=False),
        sa.Column("decayed", sa.Float, nullable=False),
        sa.Column("folded", sa.Float, nullable=False),
        sa.Column("decayed_at", sa.Float, nullable=False),
    )
    op.execute(
        "INSERT INTO usage (pool, team, model, device_seconds, decayed, folded, decayed_at) "
        "SELECT pool, team, '', device_seconds, 0, 0, 0 FROM usage_before"
    )
    op.drop_table("usage_before")
