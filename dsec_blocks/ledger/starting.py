"""The marks of a start, as it goes on: reserved → launching → running.

Each may be made for one attempt or for many in one transaction: what they are now is read with one statement, judged
mark by mark, and written with one more. An attempt that was undone meanwhile is answered with `StaleAttempt` and takes
nothing from the others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import reservations, resuming, schema
from dsec_blocks.ledger.rows import chunks
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.errors import StaleAttempt
from dsec_blocks.model.gangs import CARDS, GangState

_gangs = schema.gangs
_ALIVE = frozenset({GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING, GangState.LEAVING})


class Starting(Transactions):
    """Each mark may be repeated."""

    def claimed(self, fence: Fence, run_id: str, attempt: int, *, user_retries: int | None) -> None:
        """The Prefect run is ours: reserved → launching. Raises `StaleAttempt` if that attempt was undone."""
        _raised(self.claimed_all(fence, [(run_id, attempt, user_retries)]))

    def claimed_all(self, fence: Fence, marks: Sequence[tuple[str, int, int | None]]) -> list[StaleAttempt | None]:
        """`claimed` of each (run, attempt, user's retries); None where it was not stale."""
        with self.transaction(at="ledger.claimed", fence=fence) as connection:
            now = _Now.read(connection, [mark[0] for mark in marks])
            changed = []
            for run_id, attempt, user_retries in marks:
                if now.is_in({GangState.RESERVED}, run_id, attempt):
                    now.states[run_id] = GangState.LAUNCHING
                    changed.append({"known": run_id, "retries": user_retries})
            values = {"state": GangState.LAUNCHING, "user_retries": sa.bindparam("retries")}
            _write(connection, values, changed)
            return [now.stale(*mark[:2], _ALIVE - {GangState.LEAVING}) for mark in marks]

    def launched(self, fence: Fence, run_id: str, attempt: int, launch: Mapping[str, Any]) -> None:
        """Store what the cluster needs to find the gang again. Raises `StaleAttempt` if that attempt was undone."""
        _raised(self.launched_all(fence, [(run_id, attempt, launch)]))

    def launched_all(
        self, fence: Fence, marks: Sequence[tuple[str, int, Mapping[str, Any]]]
    ) -> list[StaleAttempt | None]:
        """`launched` of each (run, attempt, what to store); None where it was not stale."""
        with self.transaction(at="ledger.launched", fence=fence) as connection:
            now = _Now.read(connection, [mark[0] for mark in marks])
            now.add_to_launches(connection, marks)
            return [now.stale(*mark[:2], _ALIVE) for mark in marks]

    def observed_all(self, fence: Fence, marks: Sequence[tuple[str, int, Mapping[str, Sequence[str]]]]) -> list[bool]:
        """Store which cards each (run, attempt) has, by node, beside what `launched` stored.

        False for an attempt that was undone. Told before or after `launched`, and as often as somebody likes.
        """
        with self.transaction(at="ledger.observed", fence=fence) as connection:
            now = _Now.read(connection, [mark[0] for mark in marks])
            now.add_to_launches(connection, [(run_id, attempt, {CARDS: cards}) for run_id, attempt, cards in marks])
            return [now.is_in(_ALIVE, run_id, attempt) for run_id, attempt, _ in marks]

    def started(self, fence: Fence, run_id: str, attempt: int, at: float) -> bool:
        """User code runs: launching → running, reservations bound; False if that was no news.

        A gang that is evicting already stays so.
        """
        return self.started_all(fence, [(run_id, attempt, at)])[0]

    def started_all(self, fence: Fence, marks: Sequence[tuple[str, int, float]]) -> list[bool]:
        """`started` of each (run, attempt, time)."""
        with self.transaction(at="ledger.started", fence=fence) as connection:
            now = _Now.read(connection, [mark[0] for mark in marks])
            news = []
            changed: list[dict[str, Any]] = []
            for run_id, attempt, at in marks:
                is_news = now.is_in({GangState.LAUNCHING, GangState.EVICTING}, run_id, attempt)
                is_news = is_news and now.launched_at[run_id] is None
                news.append(is_news)
                if is_news:
                    now.launched_at[run_id] = at
                    state = now.states[run_id]
                    running = GangState.RUNNING if state == GangState.LAUNCHING else state
                    changed.append({"known": run_id, "becomes": running, "since": at})
            values: dict[str, Any] = {
                "state": sa.bindparam("becomes"),
                "launched_at": sa.bindparam("since"),
                "expires_at": resuming.deadline(),
            }
            _write(connection, values, changed)
            reservations.bind(connection, [(row["known"], now.attempts[row["known"]]) for row in changed])
            return news


class _Now:
    """What gangs are as a batch begins; whoever enters a change for one sees it at the next."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.launched_at: dict[str, float | None] = {}
        self.launches: dict[str, dict[str, Any]] = {}

    @classmethod
    def read(cls, connection: sa.Connection, run_ids: Collection[str]) -> "_Now":
        """Lock and read these gangs."""
        now = cls()
        columns = (_gangs.c.run_id, _gangs.c.state, _gangs.c.attempt, _gangs.c.launched_at, _gangs.c.launch)
        for some in chunks(sorted(set(run_ids))):
            query = sa.select(*columns).where(_gangs.c.run_id.in_(some)).order_by(_gangs.c.run_id).with_for_update()
            for run_id, state, attempt, launched_at, launch in connection.execute(query):
                now.states[run_id], now.attempts[run_id], now.launched_at[run_id] = state, attempt, launched_at
                now.launches[run_id] = launch
        return now

    def add_to_launches(self, connection: sa.Connection, marks: Iterable[tuple[str, int, Mapping[str, Any]]]) -> None:
        """Add to what is stored of how each (run, attempt) was launched."""
        marked = {run_id: more for run_id, attempt, more in marks if self.is_in(_ALIVE, run_id, attempt)}
        for run_id, more in marked.items():
            self.launches[run_id] = {**self.launches[run_id], **more}
        rows = [{"known": run_id, "stored": self.launches[run_id]} for run_id in marked]
        _write(connection, {"launch": sa.bindparam("stored", type_=_gangs.c.launch.type)}, rows)

    def is_in(self, states: Collection[str], run_id: str, attempt: int) -> bool:
        """Whether that is the run's present attempt, in one of the states."""
        return self.attempts.get(run_id) == attempt and self.states[run_id] in states

    def stale(self, run_id: str, attempt: int, states: Collection[str]) -> StaleAttempt | None:
        """Why the attempt is to be stopped, None if it may go on."""
        if self.is_in(states, run_id, attempt):
            return None
        known = run_id in self.states
        state = f"{self.states[run_id]}, attempt {self.attempts[run_id]}" if known else "unknown to the ledger"
        return StaleAttempt(f"run {run_id}, attempt {attempt}: the ledger has undone it (now {state}); stop it")


def _write(connection: sa.Connection, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(sa.update(_gangs).where(_gangs.c.run_id == sa.bindparam("known")).values(**values), rows)


def _raised(answers: Sequence[StaleAttempt | None]) -> None:
    for answer in answers:
        if answer is not None:
            raise answer
