"""Admission: a gang gets all of its devices in one transaction, or none, and gives them back whole if a start fails.

waiting → reserved → launching → running, and back to waiting from the two in the middle. `attempt` is raised at each
admission and named by every later step, so a step of an attempt that was undone meanwhile is refused.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import prefetches, reservations, schema
from dsec_blocks.ledger.evictions import notice, victims_of
from dsec_blocks.ledger.rows import gang_of
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.errors import ReservationConflict, StaleAttempt
from dsec_blocks.model.gangs import Gang, GangState, Placement

_gangs = schema.gangs
_FRESH_ATTEMPT: dict[str, Any] = {
    "launched_at": None,
    "first_commit_at": None,
    "last_commit_at": None,
    "reported_step": None,
    "metrics": {},
    "launch": {},
    "outcome": {},
    "not_before": None,
    "reason_code": None,
    "reason": None,
}
"""What the last attempt left behind and the next one must not inherit; `last_step` stays, it resumes from there."""

_LIFTED = {"attained_seconds": 0.0, "lifted": True}


class Admission(Transactions):
    """From waiting to running."""

    def admit(
        self,
        fence: Fence,
        run_id: str,
        placement: Placement,
        *,
        victims: Sequence[str] = (),
        expires_at: float,
        why: str = "",
        costs: Mapping[str, float] | None = None,
        lifted: bool = False,
        conditional_until: float | None = None,
    ) -> Gang:
        """Reserve the whole `placement` for a waiting gang and mark its running `victims` as evicting.

        Each node of it is told in the same transaction to fetch the gang's inputs.
        A device that a victim (or a gang already evicting, not yet promised to anybody) holds is promised behind it.
        `costs` are the victims' costs in device-seconds, for the record. What a gang that is `lifted` has had counts
        anew, and it is not lifted again. `conditional_until` is until when one that passes the head of line may stay.
        Returns the gang with its new attempt.

        Raises `ReservationConflict`; nothing has changed then, for the gang and for the victims.
        """
        now = self._clock.now()
        with self.transaction(at="ledger.admit", fence=fence) as connection:
            row = (
                connection.execute(
                    sa.update(_gangs)
                    .where(_gangs.c.run_id == run_id, _gangs.c.state == GangState.WAITING)
                    .values(
                        state=GangState.RESERVED,
                        attempt=_gangs.c.attempt + 1,
                        placement=placement.to_json(),
                        admitted_at=now,
                        expires_at=expires_at,
                        conditional_until=conditional_until,
                        **_FRESH_ATTEMPT,
                        **(_LIFTED if lifted else {}),
                    )
                    .returning(*_gangs.c)
                )
                .mappings()
                .one_or_none()
            )
            if row is None:
                raise ReservationConflict(f"run {run_id}: it is {_state(connection, run_id)}; nothing was reserved")
            gang = gang_of(row)
            reservations.hold(
                connection,
                pool=gang.pool,
                run_id=run_id,
                attempt=gang.attempt,
                placement=placement,
                victims=victims,
                now=now,
            )
            prefetches.order(connection, gang, now=now)
            if victims:
                _notice_all(connection, gang, victims=victims, why=why, costs=costs or {}, now=now)
        return gang

    def claimed(self, fence: Fence, run_id: str, attempt: int, *, user_retries: int | None) -> None:
        """The Prefect run is ours: reserved → launching. Raises `StaleAttempt` if that attempt was undone."""
        values = {"state": GangState.LAUNCHING, "user_retries": user_retries}
        with self.transaction(at="ledger.claimed", fence=fence) as connection:
            if not _step(connection, run_id, attempt, {GangState.RESERVED}, values):
                _require(connection, run_id, attempt, {GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING})

    def launched(self, fence: Fence, run_id: str, attempt: int, launch: Mapping[str, Any]) -> None:
        """Store what the cluster needs to find the gang again. Raises `StaleAttempt` if that attempt was undone."""
        alive = {GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING, GangState.LEAVING}
        with self.transaction(at="ledger.launched", fence=fence) as connection:
            if not _step(connection, run_id, attempt, alive, {"launch": dict(launch)}):
                _require(connection, run_id, attempt, alive)

    def started(self, fence: Fence, run_id: str, attempt: int, at: float) -> bool:
        """User code runs: launching → running, reservations bound; False if that was no news.

        A gang that is evicting already stays so.
        """
        with self.transaction(at="ledger.started", fence=fence) as connection:
            columns = _gangs.c
            news = _step(
                connection,
                run_id,
                attempt,
                {GangState.LAUNCHING, GangState.EVICTING},
                {
                    "state": sa.case(
                        (columns.state == GangState.LAUNCHING, GangState.RUNNING.value), else_=columns.state
                    ),
                    "launched_at": at,
                    "expires_at": None,
                },
                columns.launched_at.is_(None),
            )
            if news:
                reservations.bind(connection, run_id=run_id, attempt=attempt)
        return news

    def undo_admission(
        self, fence: Fence, run_id: str, attempt: int, *, why: str, not_before: float | None = None
    ) -> list[str]:
        """A start that failed or expired: back to waiting, all its devices and promises given up.

        Returns the gangs that are being evicted for it, whose notices the caller withdraws where it still can.
        Does nothing for an attempt that is neither reserved nor launching.
        """
        now = self._clock.now()
        values = {
            "state": GangState.WAITING,
            "placement": None,
            "expires_at": None,
            "launched_at": None,
            "not_before": not_before,
            "outcome": {"kind": "failed-start", "message": why},
        }
        with self.transaction(at="ledger.undo_admission", fence=fence) as connection:
            undone = _step(connection, run_id, attempt, {GangState.RESERVED, GangState.LAUNCHING}, values)
            if not undone:
                return []
            pool, team = connection.execute(
                sa.select(_gangs.c.pool, _gangs.c.team).where(_gangs.c.run_id == run_id)
            ).one()
            reservations.release(connection, pool=pool, team=team, run_id=run_id, attempt=attempt, now=now)
            prefetches.withdraw(connection, run_id=run_id, attempt=attempt, now=now)
            return victims_of(connection, run_id)

    def expired(
        self, pool: str, now: float, states: Collection[GangState] = frozenset({GangState.RESERVED})
    ) -> list[Gang]:
        """Gangs in `states` whose reservation was not bound in time; the caller undoes their admissions."""
        late = (_gangs.c.pool == pool, _gangs.c.state.in_(sorted(states)), _gangs.c.expires_at <= now)
        with self.reading() as connection:
            query = sa.select(_gangs).where(*late).order_by(_gangs.c.expires_at, _gangs.c.run_id)
            return [gang_of(row) for row in connection.execute(query).mappings()]


def _notice_all(
    connection: sa.Connection,
    gang: Gang,
    *,
    victims: Sequence[str],
    why: str,
    costs: Mapping[str, float],
    now: float,
) -> None:
    states = connection.execute(
        sa.select(_gangs.c.run_id, _gangs.c.state).where(_gangs.c.run_id.in_(victims), _gangs.c.pool == gang.pool)
    ).all()
    for victim in states:
        if victim.state == GangState.RESERVED:
            raise ReservationConflict(
                f"run {gang.run_id}: its victim {victim.run_id} has not started; undo that admission instead"
            )
    notice(connection, pool=gang.pool, run_ids=victims, for_run=gang.run_id, why=why or gang.name, costs=costs, now=now)


def _step(
    connection: sa.Connection,
    run_id: str,
    attempt: int,
    states: Collection[GangState],
    values: Mapping[str, Any],
    *conditions: sa.ColumnElement[bool],
) -> bool:
    mine = (_gangs.c.run_id == run_id, _gangs.c.attempt == attempt, _gangs.c.state.in_(sorted(states)), *conditions)
    return connection.execute(sa.update(_gangs).where(*mine).values(**values)).rowcount == 1


def _require(connection: sa.Connection, run_id: str, attempt: int, states: Collection[GangState]) -> None:
    row = connection.execute(sa.select(_gangs.c.attempt, _gangs.c.state).where(_gangs.c.run_id == run_id)).one_or_none()
    if row is None or row.attempt != attempt or row.state not in states:
        raise StaleAttempt(
            f"run {run_id}, attempt {attempt}: the ledger has undone it (now {_state(connection, run_id)}); stop it"
        )


def _state(connection: sa.Connection, run_id: str) -> str:
    row = connection.execute(sa.select(_gangs.c.attempt, _gangs.c.state).where(_gangs.c.run_id == run_id)).one_or_none()
    return "unknown to the ledger" if row is None else f"{row.state}, attempt {row.attempt}"
