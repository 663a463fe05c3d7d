"""A `dsec` that is newer than the workers looks at their ledger, and does not end them by that."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.opening import MIGRATIONS, engine_for
from tests.deployments.test_command import dsec, one_line

pytestmark = pytest.mark.slow
OLDER = schema.REVISIONS[-2]


@pytest.fixture
def older_ledger(tmp_path: Path) -> str:
    """The URL of a ledger of the version before, whose leader lives."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = engine_for(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLDER)
        lease = "INSERT INTO leases (pool, holder, token, beat, released) VALUES ('dsec', 'me', 7, 9, :no)"
        connection.execute(sa.text(lease), {"no": False})
        connection.commit()
    engine.dispose()
    return url


def state_of(url: str) -> tuple[str, bool]:
    """The schema's revision, and whether its leader was sent away."""
    engine = engine_for(url)
    with engine.connect() as connection:
        version = connection.execute(sa.text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar_one()
        released = connection.execute(sa.text("SELECT released FROM leases")).scalar_one()
    engine.dispose()
    return str(version), bool(released)


def test_a_look_at_an_older_ledger_says_what_to_do_and_only_migrate_migrates(older_ledger: str, tmp_path: Path) -> None:
    at = {"DSEC_LEDGER_URL": older_ledger}
    refused = dsec("queue", home=tmp_path, **at)
    assert refused.returncode == 3
    line = one_line(refused)
    assert f"its schema is {OLDER}, of an older DSec" in line and "`dsec ledger migrate`" in line
    assert state_of(older_ledger) == (OLDER, False)
    migrated = dsec("ledger", "migrate", home=tmp_path, **at)
    assert migrated.returncode == 0 and f"went from {OLDER} to {schema.HEAD}" in migrated.stdout
    assert state_of(older_ledger) == (schema.HEAD, True)
