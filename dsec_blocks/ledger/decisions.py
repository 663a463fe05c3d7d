"""The decision log: what was decided, stage by stage, on which input, by which policy, and why. It only grows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Fence, Transactions

_decisions = schema.decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One entry. `input_digest` names what the decision was made from, `policy_version` the rules it followed."""

    at: float
    pool: str
    run_id: str | None
    stage: str
    outcome: str
    why: str
    detail: dict[str, Any] = field(default_factory=dict)
    policy_version: str = ""
    input_digest: str = ""


class Decisions(Transactions):
    """Adding and reading; there is no way to change or remove an entry."""

    def decide(self, fence: Fence, entries: Sequence[Decision]) -> None:
        """Append entries, in their order."""
        if not entries:
            return
        with self.transaction(at="ledger.decide", fence=fence) as connection:
            connection.execute(sa.insert(_decisions), [asdict(entry) for entry in entries])

    def decisions(self, pool: str, *, run_id: str | None = None, limit: int = 100) -> list[Decision]:
        """The newest `limit` entries of `pool` (and run), oldest first."""
        columns = [column for column in _decisions.c if column.name != "id"]
        query = sa.select(*columns).where(_decisions.c.pool == pool).order_by(_decisions.c.id.desc()).limit(limit)
        if run_id is not None:
            query = query.where(_decisions.c.run_id == run_id)
        with self.reading() as connection:
            return [Decision(**row) for row in reversed(connection.execute(query).mappings().all())]
