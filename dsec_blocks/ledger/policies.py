"""Policies: which rules a pool plans by, every version of them, who set it and why.

Two roles: the *active* policy decides, a *shadow* one is asked beside it and never obeyed. Version 1 is what DSec
ships with; it is in force until somebody sets another, and has no row.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Transactions

_policies = schema.policies
ACTIVE, SHADOW = "active", "shadow"
SHIPPED_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """One version: `body` holds what differs from the shipped policy, by field; None ends a shadow policy."""

    version: int
    role: str
    body: dict[str, Any] | None
    by: str
    why: str
    at: float


class Policies(Transactions):
    """Written by the command line, read by the leader before each plan."""

    def put_policy(self, pool: str, body: dict[str, Any] | None, *, role: str = ACTIVE, by: str, why: str) -> int:
        """Make this the newest policy of its role; returns its version. Versions of both roles are counted together."""
        with self.transaction(at="ledger.put_policy") as connection:
            newest = sa.select(sa.func.max(_policies.c.version)).where(_policies.c.pool == pool)
            version = (connection.execute(newest).scalar_one_or_none() or SHIPPED_VERSION) + 1
            values = {"pool": pool, "role": role, "version": version, "body": body, "by": by, "why": why}
            connection.execute(sa.insert(_policies).values(**values, at=self._clock.now()))
        return version

    def policy(self, pool: str, *, role: str = ACTIVE) -> PolicyRecord | None:
        """The newest policy of its role; None where nobody set one (or the shadow was ended)."""
        found = self._newest(pool, role, limit=1)
        return found[0] if found and found[0].body is not None else None

    def policies(self, pool: str, *, limit: int = 100) -> list[PolicyRecord]:
        """All versions of both roles, the newest first."""
        return self._newest(pool, None, limit=limit)

    def _newest(self, pool: str, role: str | None, *, limit: int) -> list[PolicyRecord]:
        columns = [column for column in _policies.c if column.name not in ("id", "pool")]
        query = sa.select(*columns).where(_policies.c.pool == pool).order_by(_policies.c.version.desc()).limit(limit)
        if role is not None:
            query = query.where(_policies.c.role == role)
        with self.reading() as connection:
            return [PolicyRecord(**row) for row in connection.execute(query).mappings()]
