"""A ledger on each database, and the few gangs and placements that the tests speak of."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dsec_blocks.ledger import Ledger
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import clock, fence, migrated, opened

__all__ = ["clock", "fence"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, or of one that is migrated where the test asks for an open ledger."""
    is_open = "ledger" in request.fixturenames
    if request.param == "postgres":
        return str(request.getfixturevalue("migrated_postgres_url" if is_open else "postgres_url"))
    return migrated(tmp_path / "ledger.db") if is_open else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    ledger = opened(ledger_url, clock=clock)
    yield ledger
    ledger.close()


@pytest.fixture
def statements(ledger: Ledger) -> Callable[[str], None]:
    """Runs raw SQL, to plant what no method of the ledger would do."""

    def run(sql: str) -> None:
        with ledger.transaction(at="test.plant") as connection:
            connection.exec_driver_sql(sql)

    return run


@pytest.fixture
def statements_of(ledger: Ledger) -> Callable[[Callable[[], None]], list[str]]:
    """The statements that the ledger sends to its database while something is done."""

    def told(act: Callable[[], None]) -> list[str]:
        found: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            found.append(statement)

        sa.event.listen(ledger._engine, "before_cursor_execute", note)
        try:
            act()
        finally:
            sa.event.remove(ledger._engine, "before_cursor_execute", note)
        return found

    return told
