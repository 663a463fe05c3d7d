"""What the command cannot work with is one line that says what it is and what to do; no traceback."""

import sqlite3
from pathlib import Path

import pytest

from dsec_blocks.ledger.schema import VERSION_TABLE
from tests.deployments.test_command import dsec, one_line
from tests.fixtures.ledgers import migrated

pytestmark = pytest.mark.slow
RUN = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("words", [("pool",), ("queue",), ("ledger", "check"), ("ledger", "migrate")])
def test_a_database_of_a_newer_version_is_named_and_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "ledger.db"
    migrated(path)
    with sqlite3.connect(path) as database:
        database.execute(f"update {VERSION_TABLE} set version_num = '9999'")
    database.close()
    done = dsec(*words, home=tmp_path)
    assert done.returncode == 3
    assert "its schema is 9999" in one_line(done)
    assert "upgrade dsec" in one_line(done)
    assert str(path) in one_line(done)
    with sqlite3.connect(path) as database:
        assert database.execute(f"select version_num from {VERSION_TABLE}").fetchall() == [("9999",)]
    database.close()


@pytest.mark.parametrize("words", [("resume", RUN, "--fresh"), ("resume", RUN, "--from", "3"), ("rm", RUN, "--all")])
def test_a_checkpoint_path_that_cannot_be_written_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = dsec("checkpoint", *words, "--store", str(tmp_path / "file" / "store"), home=tmp_path)
    assert done.returncode in (1, 3)
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file" / "store") in one_line(done)
