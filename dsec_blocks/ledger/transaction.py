"""The ledger's gateway: every write is one transaction at a named fault point, fenced where a leader writes.

A leader that was stopped and wakes after it has been replaced must not write. So a leader's transaction compares its
token *inside itself*, holding the lease's row (PostgreSQL) or the database's write lock (SQLite): whoever takes over
does so entirely before or entirely after it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dsec_blocks.gateways.faults import InjectedError, fault_point
from dsec_blocks.ledger import schema
from dsec_blocks.ledger.failures import explain
from dsec_blocks.ledger.revision import keep_revision
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import Fenced


class Fence(NamedTuple):
    """A leader's right to write: void as soon as the pool's lease has another holder or token."""

    pool: str
    holder: str
    token: int


Observe = Callable[[str, float, bool], None]
"""Told after each use of the database: its kind (read, write, backup), seconds, whether the database failed."""


class _Open(threading.local):
    connection: sa.Connection | None = None
    reading: sa.Connection | None = None
    fence: Fence | None = None
    points: list[str] | None = None
    """The fault points of the writes that are one commit so far."""


class Transactions:
    """One database, and the only two ways to it: `transaction` writes, `reading` reads one consistent state.

    Thread-safe. Either may be entered inside an open `transaction` of the same thread and then is part of it, so a
    caller can make several calls one commit; a call that fails inside is undone alone if the caller catches its error.
    What is read inside an open `reading` is of its state.
    """

    observe: Observe | None = None

    def __init__(self, engine: sa.Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._open = _Open()
        # SQLite's own waiting for the write lock polls; threads of this process queue here instead.
        self._writer = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @property
    def url(self) -> str:
        """Where the ledger is, without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def transaction(
        self, *, at: str, fence: Fence | None = None, any_revision: bool = False
    ) -> Iterator[sa.Connection]:
        """Commit what the body does, whole, at the fault point `at`; an exception undoes it.

        Raises `Fenced` if `fence` is void, `LedgerTooNew` if a newer DSec has migrated the database meanwhile (which
        `any_revision` allows), `LedgerUnreachable` or `LedgerError` if the database fails.
        """
        if self._open.connection is not None:
            if self._open.points is not None and fence == self._open.fence:
                self._open.points.append(at)
                yield self._open.connection
                return
            with self._joined(self._open.connection, fence) as connection:
                yield connection
            return
        with self._explained("write"), self._writer, self._engine.connect() as connection:
            self._open.connection, self._open.fence = connection, fence
            try:
                connection.begin()
                if fence is not None:
                    _compare(connection, fence)
                elif not any_revision:
                    keep_revision(connection, self.url)
                yield connection
                with fault_point(at):
                    connection.commit()
            finally:
                self._open.connection = self._open.fence = None

    @contextmanager
    def together(self, fence: Fence) -> Iterator[None]:
        """Make the writes of `fence` in the body one commit, at the fault points of all of them.

        All or nothing: one that fails undoes the others, whoever catches its error. Raises what `transaction` raises.
        """
        with self._explained("write"), self._writer, self._engine.connect() as connection:
            points: list[str] = []
            self._open.connection, self._open.fence, self._open.points = connection, fence, points
            try:
                connection.begin()
                _compare(connection, fence)
                yield
                with ExitStack() as stack:
                    for at in points:
                        stack.enter_context(fault_point(at))
                    connection.commit()
            finally:
                self._open.connection = self._open.fence = self._open.points = None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Read one consistent state; takes no lock that a writer would wait for."""
        if self._open.connection is not None:
            yield self._open.connection
            return
        if self._open.reading is not None:
            yield self._open.reading
            return
        with self._explained("read"), self._engine.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                # Its default gives each statement a state of its own; SQLite's transactions keep the first.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            self._open.reading = connection.execution_options(dsec_read_only=True)
            try:
                yield self._open.reading
            finally:
                self._open.reading = None

    @contextmanager
    def _joined(self, connection: sa.Connection, fence: Fence | None) -> Iterator[sa.Connection]:
        if fence is not None and fence != self._open.fence:
            _compare(connection, fence)
        with connection.begin_nested():
            yield connection

    @contextmanager
    def _explained(self, kind: str) -> Iterator[None]:
        began, failed = self._clock.monotonic(), False
        try:
            yield
        except (SQLAlchemyError, InjectedError) as error:
            failed = True
            raise explain(error, self._engine.url) from error
        finally:
            if self.observe is not None:
                self.observe(kind, self._clock.monotonic() - began, failed)


def _compare(connection: sa.Connection, fence: Fence) -> None:
    """Hold the lease's row, and count the transaction: what it writes of gangs bears this number (see `changes`)."""
    leases = schema.leases.c
    mine = (leases.pool == fence.pool, leases.holder == fence.holder, leases.token == fence.token, ~leases.released)
    counted = sa.update(schema.leases).where(*mine).values(changes=leases.changes + 1)
    if connection.execute(counted).rowcount == 1:
        return
    query = sa.select(leases.holder, leases.token, leases.released).where(leases.pool == fence.pool)
    lease = connection.execute(query).one_or_none()
    now = "nobody does" if lease is None or lease.released else f"{lease.holder} does (token {lease.token})"
    raise Fenced(
        f"{fence.holder} (token {fence.token}) no longer leads pool {fence.pool}: {now}; nothing was written, "
        "this process stands by"
    )
