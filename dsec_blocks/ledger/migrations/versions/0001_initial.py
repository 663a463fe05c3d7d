"""The first ledger: teams, nodes, gangs and their reservations, leadership, decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "teams",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("nominal_devices", sa.Integer, nullable=False),
        sa.Column("borrow_devices", sa.Integer),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("highest_priority", sa.Integer, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("topology", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("schedulable", sa.Boolean, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("uuid", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("nvlink_domain", sa.Text, nullable=False),
        sa.Column("numa_node", sa.Integer, nullable=False),
        sa.Column("health", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["pool", "node"], ["nodes.pool", "nodes.name"], ondelete="CASCADE"),
    )
    op.create_table(
        "gangs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("eligible_at", sa.Float, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("placement", sa.JSON),
        sa.Column("admitted_at", sa.Float),
        sa.Column("expires_at", sa.Float),
        sa.Column("launched_at", sa.Float),
        sa.Column("first_commit_at", sa.Float),
        sa.Column("last_commit_at", sa.Float),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("reported_step", sa.BigInteger),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("checkpoint_seconds", sa.Float),
        sa.Column("restart_seconds", sa.Float),
        sa.Column("has_on_evict", sa.Boolean, nullable=False),
        sa.Column("evictions", sa.Integer, nullable=False),
        sa.Column("infrastructure_restarts", sa.Integer, nullable=False),
        sa.Column("user_retries", sa.Integer),
        sa.Column("not_before", sa.Float),
        sa.Column("launch", sa.JSON, nullable=False),
        sa.Column("outcome", sa.JSON, nullable=False),
        sa.Column("final_state", sa.Text),
        sa.Column("reason_code", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("parent_run_id", sa.Text),
    )
    op.create_index("gangs_by_state", "gangs", ["pool", "state"])
    op.create_table(
        "reservations",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("turn", sa.Integer, sa.CheckConstraint("turn in (0, 1)", name="turn_is_0_or_1"), primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_index("reservations_by_run", "reservations", ["run_id"])
    op.create_table(
        "evictions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("for_run", sa.Text),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("cost", sa.Float),
        sa.Column("noticed_at", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("closed_at", sa.Float),
    )
    is_open = sa.text("state = 'open'")
    op.create_index(
        "one_open_eviction_a_run",
        "evictions",
        ["run_id"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_table(
        "usage",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("team", sa.Text, primary_key=True),
        sa.Column("device_seconds", sa.Float, nullable=False),
    )
    op.create_table(
        "shadows",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("resource_pool", sa.Text, primary_key=True),
        sa.Column("row", sa.JSON, nullable=False),
    )
    op.create_table(
        "decisions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("policy_version", sa.Text, nullable=False),
        sa.Column("input_digest", sa.Text, nullable=False),
    )
    op.create_index("decisions_by_run", "decisions", ["pool", "run_id", "id"])
    op.create_table(
        "leases",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("released", sa.Boolean, nullable=False),
    )
