"""The queue: which runs wait, since when, and why. Prefect says what is there; this remembers what it means."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import arrivals, durations, schema
from dsec_blocks.ledger.changes import change_number
from dsec_blocks.ledger.rows import GANG_COLUMNS, chunks, gang_of, gangs_of, insert_new, request_text, row_of
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.gangs import Gang, GangState

_gangs = schema.gangs
_FROM_PREFECT = ("name", "team", "request", "eligible_at", "parent_run_id", "created_by", "tags")
"""What may change in Prefect while a run waits."""


class Queue(Transactions):
    """Gangs as a whole: those that wait, and reading all others."""

    def enqueue(self, fence: Fence, gangs: Sequence[Gang]) -> list[str]:
        """Make runs that Prefect says are scheduled wait here too; the ids of those that did not wait before.

        Unknown runs are added, waiting ones brought up to date, ended ones (Retry in the UI) wait again with their
        attempts, evictions and first submit time; all others are left alone. Unknown runs
        count as arrivals. Without news nothing is written.
        """
        known = self._known([gang.run_id for gang in gangs])
        unknown, changed, again = [], [], []
        for gang in gangs:
            row = known.get(gang.run_id)
            if row is None:
                unknown.append(row_of(gang))
                continue
            now = {name: getattr(gang, name) for name in _FROM_PREFECT}
            now |= {"request": request_text(gang.request), "tags": list(gang.tags)}
            if row["state"] == GangState.ENDED:
                again.append({"known": gang.run_id, **now})
            elif row["state"] == GangState.WAITING and any(row[name] != now[name] for name in _FROM_PREFECT):
                changed.append({"known": gang.run_id, **now})
        if not unknown and not changed and not again:
            return []
        binds: dict[str, Any] = {name: sa.bindparam(name) for name in _FROM_PREFECT}
        update = sa.update(_gangs).where(_gangs.c.run_id == sa.bindparam("known")).values(**binds)
        with self.transaction(at="ledger.enqueue", fence=fence) as connection:
            if unknown:
                new = {row["run_id"] for row in unknown}
                expected = durations.expectations(connection, fence.pool, [g for g in gangs if g.run_id in new])
                more = {"changed": change_number(connection, fence.pool)}
                unknown = [{**row, **more, "expected_seconds": expected[row["run_id"]]} for row in unknown]
                insert_new(connection, _gangs, unknown)
                arrivals.count(connection, fence.pool, [gang.request for gang in gangs if gang.run_id in new])
            if changed:
                connection.execute(update.where(_gangs.c.state == GangState.WAITING), changed)
            if again:
                fresh: dict[str, Any] = {
                    "state": GangState.WAITING,
                    "final_state": None,
                    "ended_at": None,
                    "outcome": {},
                    "not_before": None,
                }
                connection.execute(update.values(**fresh).where(_gangs.c.state == GangState.ENDED), again)
        return [row["run_id"] for row in unknown] + [row["known"] for row in again]

    def gang(self, run_id: str) -> Gang | None:
        """The gang of one flow run, None if the ledger does not know it."""
        with self.reading() as connection:
            row = connection.execute(sa.select(*GANG_COLUMNS).where(_gangs.c.run_id == run_id)).one_or_none()
        return None if row is None else gang_of(row)

    def named(self, run_ids: Collection[str]) -> dict[str, Gang]:
        """Those of the runs that the ledger knows, by id."""
        found: list[Gang] = []
        with self.reading() as connection:
            for some in chunks(sorted(run_ids)):
                found += gangs_of(connection.execute(sa.select(*GANG_COLUMNS).where(_gangs.c.run_id.in_(some))).all())
        return {gang.run_id: gang for gang in found}

    def states(self, run_ids: Sequence[str]) -> dict[str, GangState]:
        """The states of those of the runs that the ledger knows."""
        found: dict[str, GangState] = {}
        with self.reading() as connection:
            for some in chunks(run_ids):
                rows = connection.execute(sa.select(_gangs.c.run_id, _gangs.c.state).where(_gangs.c.run_id.in_(some)))
                found.update((row.run_id, GangState(row.state)) for row in rows)
        return found

    def waiting(self, pool: str) -> list[str]:
        """The runs of `pool` that wait, first submitted first."""
        mine = (_gangs.c.pool == pool, _gangs.c.state == GangState.WAITING)
        query = sa.select(_gangs.c.run_id).where(*mine).order_by(_gangs.c.submitted_at, _gangs.c.run_id)
        with self.reading() as connection:
            return list(connection.execute(query).scalars())

    def gangs(self, pool: str, states: Collection[GangState] | None = None) -> list[Gang]:
        """Gangs of `pool` in `states` (all if None), first submitted first."""
        query = sa.select(*GANG_COLUMNS).where(_gangs.c.pool == pool).order_by(_gangs.c.submitted_at, _gangs.c.run_id)
        if states is not None:
            query = query.where(_gangs.c.state.in_(sorted(states)))
        with self.reading() as connection:
            return gangs_of(connection.execute(query).all())

    def forget_waiting(self, fence: Fence, run_ids: Collection[str]) -> None:
        """End gangs that wait here while their runs were cancelled, deleted or completed elsewhere."""
        with self.transaction(at="ledger.forget_waiting", fence=fence) as connection:
            for some in chunks(sorted(run_ids)):
                waiting = (_gangs.c.run_id.in_(some), _gangs.c.state == GangState.WAITING)
                connection.execute(
                    sa.update(_gangs)
                    .where(*waiting)
                    .values(state=GangState.ENDED, reason_code=None, reason=None, ended_at=self._clock.now())
                )

    def set_reasons(self, fence: Fence, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Store why gangs wait: run id → (code, text)."""
        if not reasons:
            return
        rows = [{"known": run_id, "code": str(code), "text": text} for run_id, (code, text) in reasons.items()]
        with self.transaction(at="ledger.set_reasons", fence=fence) as connection:
            connection.execute(
                sa.update(_gangs)
                .where(_gangs.c.run_id == sa.bindparam("known"), _gangs.c.state == GangState.WAITING)
                .values(reason_code=sa.bindparam("code"), reason=sa.bindparam("text")),
                rows,
            )

    def _known(self, run_ids: Sequence[str]) -> dict[str, Mapping[Any, Any]]:
        columns = [_gangs.c[name] for name in ("run_id", "state", *_FROM_PREFECT)]
        known: dict[str, Mapping[Any, Any]] = {}
        with self.reading() as connection:
            for some in chunks(run_ids):
                rows = connection.execute(sa.select(*columns).where(_gangs.c.run_id.in_(some))).mappings()
                known.update((row["run_id"], row) for row in rows)
        return known
