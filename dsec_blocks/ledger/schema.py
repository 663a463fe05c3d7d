"""The ledger's tables as this version of DSec knows them.

`migrations/` makes a database look like this; a test proves that both say the same. Times are seconds since the
epoch. Nested values are JSON. There is nothing here that SQLite and PostgreSQL would not both understand.
"""

import sqlalchemy as sa

REVISIONS = (
    "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014",
)  # fmt: skip
"""Every schema revision, oldest first. A database at any other one was written by a newer DSec."""
HEAD = REVISIONS[-1]
VERSION_TABLE = "dsec_schema"
"""Not Alembic's default name: the ledger may share a database with Prefect, which uses that one."""

metadata = sa.MetaData()
_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_Json = sa.JSON(none_as_null=True)

teams = sa.Table(
    "teams",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("nominal_devices", sa.Integer, nullable=False),
    sa.Column("borrow_devices", sa.Integer),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("highest_priority", sa.Integer, nullable=False),
    sa.Column("lend_devices", sa.Integer),
    sa.Column("parent", sa.Text),
    sa.Column("user_devices", sa.Integer),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("topology", _Json, nullable=False),
    sa.Column("labels", _Json, nullable=False),
    sa.Column("schedulable", sa.Boolean, nullable=False),
    sa.Column("cpus", sa.Float),
    sa.Column("memory_bytes", sa.BigInteger),
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("uuid", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("index", sa.Integer, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("nvlink_domain", sa.Text, nullable=False),
    sa.Column("numa_node", sa.Integer, nullable=False),
    sa.Column("health", sa.Text, nullable=False),
    sa.Column("slice_of", sa.Text, nullable=False, server_default=""),
    sa.Column("profile", sa.Text, nullable=False, server_default=""),
    sa.ForeignKeyConstraint(["pool", "node"], ["nodes.pool", "nodes.name"], ondelete="CASCADE"),
)

gangs = sa.Table(
    "gangs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("team", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("eligible_at", sa.Float, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("placement", _Json),
    sa.Column("admitted_at", sa.Float),
    sa.Column("expires_at", sa.Float),
    sa.Column("launched_at", sa.Float),
    sa.Column("first_commit_at", sa.Float),
    sa.Column("last_commit_at", sa.Float),
    sa.Column("last_step", sa.BigInteger),
    sa.Column("reported_step", sa.BigInteger),
    sa.Column("metrics", _Json, nullable=False),
    sa.Column("checkpoint_seconds", sa.Float),
    sa.Column("restart_seconds", sa.Float),
    sa.Column("has_on_evict", sa.Boolean, nullable=False),
    sa.Column("evictions", sa.Integer, nullable=False),
    sa.Column("infrastructure_restarts", sa.Integer, nullable=False),
    sa.Column("user_retries", sa.Integer),
    sa.Column("not_before", sa.Float),
    sa.Column("launch", _Json, nullable=False),
    sa.Column("outcome", _Json, nullable=False),
    sa.Column("final_state", sa.Text),
    sa.Column("reason_code", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("parent_run_id", sa.Text),
    sa.Column("created_by", sa.Text, nullable=False, server_default=""),
    sa.Column("tags", _Json),
    sa.Column("ended_at", sa.Float),
    sa.Column("attained_seconds", sa.Float, nullable=False, server_default="0"),
    sa.Column("waiting_since", sa.Float),
    sa.Column("lifted", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("conditional_until", sa.Float),
    sa.Column("resumes_at", _Json),
    sa.Column("deployment", sa.Text, nullable=False, server_default=""),
    sa.Column("expected_seconds", sa.Float),
    sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("gangs_by_state", "pool", "state"),
    sa.Index("gangs_by_change", "pool", "changed"),
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("turn", sa.Integer, sa.CheckConstraint("turn in (0, 1)", name="turn_is_0_or_1"), primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("charged_until", sa.Float),
    sa.Index("reservations_by_run", "run_id"),
)

evictions = sa.Table(
    "evictions",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("for_run", sa.Text),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("cost", sa.Float),
    sa.Column("noticed_at", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("closed_at", sa.Float),
    sa.Index(
        "one_open_eviction_a_run",
        "run_id",
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    ),
    sa.Index("evictions_by_run", "run_id"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("team", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("device_seconds", sa.Float, nullable=False),
    sa.Column("decayed", sa.Float, nullable=False),
    sa.Column("folded", sa.Float, nullable=False),
    sa.Column("decayed_at", sa.Float, nullable=False),
)

shadows = sa.Table(
    "shadows",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("resource_pool", sa.Text, primary_key=True),
    sa.Column("row", _Json, nullable=False),
)

node_failures = sa.Table(
    "node_failures",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("detail", _Json, nullable=False),
    sa.Column("policy_version", sa.Text, nullable=False),
    sa.Column("input_digest", sa.Text, nullable=False),
    sa.Index("decisions_by_run", "pool", "run_id", "id"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("released", sa.Boolean, nullable=False),
    sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
)

# Whoever updates a gang, with whatever statement, says in which of its pool's transactions; see `changes`.
CHANGE = sa.select(leases.c.changes).where(leases.c.pool == gangs.c.pool).correlate(gangs).scalar_subquery()
gangs.c.changed.onupdate = sa.ColumnDefault(sa.func.coalesce(CHANGE, 0), for_update=True)

wishes = sa.Table(
    "wishes",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("args", _Json, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("fulfilled_at", sa.Float),
    sa.Column("outcome", sa.Text),
    sa.Column("taken_up_at", sa.Float),
    sa.Index("wishes_by_pool", "pool", "fulfilled_at"),
)

policies = sa.Table(
    "policies",
    metadata,
    sa.Column("id", _Id, primary_key=True, autoincrement=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", _Json),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("one_policy_a_version", "pool", "version", unique=True),
)

fills = sa.Table(
    "fills",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
)

inventories = sa.Table(
    "inventories",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("bandwidth_bytes_per_s", sa.Float),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("bundles", _Json, nullable=False),
)

prefetches = sa.Table(
    "prefetches",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("gangs.run_id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("addresses", _Json, nullable=False),
    sa.Column("ordered_at", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("began_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("updated_at", sa.Float),
    sa.Column("bytes_done", sa.BigInteger, nullable=False),
    sa.Column("bytes_total", sa.BigInteger, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("figures", _Json),
    sa.Index("prefetches_by_node", "node", "state"),
)

prefetch_asks = sa.Table(
    "prefetch_asks",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("addresses", _Json, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("ordered_at", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("bytes_done", sa.BigInteger, nullable=False),
    sa.Column("bytes_total", sa.BigInteger, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("figures", _Json),
    sa.Index("prefetch_asks_by_node", "node", "state"),
)

arrivals = sa.Table(
    "arrivals",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
)

durations = sa.Table(
    "durations",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("history", sa.Text, primary_key=True),
    sa.Column("seconds", _Json, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)
