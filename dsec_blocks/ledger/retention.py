"""Retention: what ended long ago is forgotten in small batches, so that a pool's tables do not grow for ever.

Only rows that nothing refers to go: an ended gang without reservations or open evictions, and not the parent of one
that is alive. The evictions it suffered and its prefetch orders go with it. The inventory of a node goes that has not
been heard of for as long as decisions are kept. Usage and policies stay.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from dsec_blocks.ledger import prefetches, schema
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.gangs import GangState

_gangs = schema.gangs
_evictions = schema.evictions
_reservations = schema.reservations
_decisions = schema.decisions
_wishes = schema.wishes
_inventories = schema.inventories


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows of each kind are gone."""

    gangs: int = 0
    decisions: int = 0
    wishes: int = 0
    inventories: int = 0

    def __bool__(self) -> bool:
        return bool(self.gangs or self.decisions or self.wishes or self.inventories)


class Retention(Transactions):
    """Forgetting; the leader's business."""

    def prune(self, fence: Fence, *, ended_before: float, decided_before: float, batch: int = 200) -> Pruned:
        """Forget at most `batch` rows of each kind that are older; without any nothing is written."""
        gangs, decisions, wishes, nodes = self._old(fence.pool, ended_before, decided_before, batch)
        if not (gangs or decisions or wishes or nodes):
            return Pruned()
        with self.transaction(at="ledger.prune", fence=fence) as connection:
            # Judged again inside: a run may have been retried since.
            still = (_gangs.c.run_id.in_(gangs), *self._forgettable(fence.pool, ended_before))
            gone = list(connection.execute(sa.select(_gangs.c.run_id).where(*still)).scalars())
            if gone:
                connection.execute(sa.delete(_evictions).where(_evictions.c.run_id.in_(gone)))
                prefetches.forget(connection, gone)
                connection.execute(sa.delete(_gangs).where(_gangs.c.run_id.in_(gone)))
            if decisions:
                connection.execute(sa.delete(_decisions).where(_decisions.c.id.in_(decisions)))
            if wishes:
                connection.execute(sa.delete(_wishes).where(_wishes.c.id.in_(wishes)))
            if nodes:
                silent = (_inventories.c.node.in_(nodes), _inventories.c.at < decided_before)
                connection.execute(sa.delete(_inventories).where(*silent))
        return Pruned(gangs=len(gone), decisions=len(decisions), wishes=len(wishes), inventories=len(nodes))

    def _old(
        self, pool: str, ended: float, decided: float, batch: int
    ) -> tuple[list[str], list[int], list[int], list[str]]:
        old_gangs = sa.select(_gangs.c.run_id).where(*self._forgettable(pool, ended)).order_by(_gangs.c.ended_at)
        old_decisions = sa.select(_decisions.c.id).where(_decisions.c.pool == pool, _decisions.c.at < decided)
        answered = (_wishes.c.pool == pool, _wishes.c.fulfilled_at < decided)
        old_wishes = sa.select(_wishes.c.id).where(*answered)
        silent = sa.select(_inventories.c.node).where(_inventories.c.at < decided).order_by(_inventories.c.node)
        with self.reading() as connection:
            return (
                list(connection.execute(old_gangs.limit(batch)).scalars()),
                list(connection.execute(old_decisions.order_by(_decisions.c.id).limit(batch)).scalars()),
                list(connection.execute(old_wishes.order_by(_wishes.c.id).limit(batch)).scalars()),
                list(connection.execute(silent.limit(batch)).scalars()),
            )

    def _forgettable(self, pool: str, ended_before: float) -> tuple[sa.ColumnElement[bool], ...]:
        child = _gangs.alias("child")
        run_id = _gangs.c.run_id
        held = sa.select(_reservations.c.device).where(_reservations.c.run_id == run_id)
        evicting = sa.select(_evictions.c.id).where(
            sa.or_(_evictions.c.run_id == run_id, _evictions.c.for_run == run_id), _evictions.c.state == "open"
        )
        waited_for = sa.select(child.c.run_id).where(child.c.parent_run_id == run_id, child.c.state != GangState.ENDED)
        return (
            _gangs.c.pool == pool,
            _gangs.c.state == GangState.ENDED,
            _gangs.c.ended_at < ended_before,
            ~held.exists(),
            ~evicting.exists(),
            ~waited_for.exists(),
        )
