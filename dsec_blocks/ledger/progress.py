"""What a gang reports while it runs. Events may come twice, late, or from an attempt that is over: only news counts."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.transaction import Fence, Transactions

_gangs = schema.gangs


class Progress(Transactions):
    """Each method says whether what it was told belongs to the current attempt; each may be told many at once."""

    def progressed(
        self,
        fence: Fence,
        run_id: str,
        attempt: int,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        has_on_evict: bool | None = None,
    ) -> bool:
        """The gang reported a step, metrics, or that it can answer an eviction; None leaves what was known."""
        return self.progressed_all(fence, [(run_id, attempt, step, metrics, has_on_evict)])[0]

    def progressed_all(
        self, fence: Fence, marks: Sequence[tuple[str, int, int | None, Mapping[str, float] | None, bool | None]]
    ) -> list[bool]:
        """`progressed` of each (run, attempt, step, metrics, can answer an eviction), in one transaction."""
        with self.transaction(at="ledger.progressed", fence=fence) as connection:
            return [
                _note(
                    connection,
                    run_id,
                    attempt,
                    {"reported_step": step, "metrics": metrics and dict(metrics), "has_on_evict": has_on_evict},
                )
                for run_id, attempt, step, metrics, has_on_evict in marks
            ]

    def committed(
        self, fence: Fence, run_id: str, attempt: int, *, at: float, step: int, seconds: float | None
    ) -> bool:
        """A checkpoint of `step` was committed at `at`; the attempt's first one ends its minimum run time."""
        return self.committed_all(fence, [(run_id, attempt, at, step, seconds)])[0]

    def committed_all(self, fence: Fence, marks: Sequence[tuple[str, int, float, int, float | None]]) -> list[bool]:
        """`committed` of each (run, attempt, time, step, seconds), in one transaction."""
        with self.transaction(at="ledger.committed", fence=fence) as connection:
            return [_commit(connection, *mark) for mark in marks]

    def timed(
        self,
        fence: Fence,
        run_id: str,
        attempt: int,
        *,
        checkpoint_seconds: float | None = None,
        restart_seconds: float | None = None,
    ) -> bool:
        """Measured: notice to devices free, and claim to first step."""
        return self.timed_all(fence, [(run_id, attempt, checkpoint_seconds, restart_seconds)])[0]

    def timed_all(self, fence: Fence, marks: Sequence[tuple[str, int, float | None, float | None]]) -> list[bool]:
        """`timed` of each (run, attempt, notice to devices free, claim to first step), in one transaction."""
        with self.transaction(at="ledger.timed", fence=fence) as connection:
            return [
                _note(connection, run_id, attempt, {"checkpoint_seconds": left, "restart_seconds": begun})
                for run_id, attempt, left, begun in marks
            ]


def _commit(connection: sa.Connection, run_id: str, attempt: int, at: float, step: int, seconds: float | None) -> bool:
    columns = _gangs.c
    newest = sa.or_(columns.last_commit_at.is_(None), columns.last_commit_at <= at)
    values = {
        "first_commit_at": sa.func.coalesce(columns.first_commit_at, at),
        "last_commit_at": at,
        "last_step": step,
        "checkpoint_seconds": seconds,
    }
    return _note(connection, run_id, attempt, values, newest)


def _note(
    connection: sa.Connection, run_id: str, attempt: int, values: Mapping[str, Any], *only: sa.ColumnElement[bool]
) -> bool:
    told = {name: value for name, value in values.items() if value is not None}
    if not told:
        return False
    mine = (_gangs.c.run_id == run_id, _gangs.c.attempt == attempt, *only)
    return connection.execute(sa.update(_gangs).where(*mine).values(**told)).rowcount == 1
