"""A command that is killed half-way leaves something that the same command, typed again, puts right."""

import itertools
import sqlite3
from pathlib import Path

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.teams import Team
from tests.crash import cases
from tests.crash.sightings import processes_of
from tests.deployments.test_command import dsec
from tests.fixtures.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = ("kill_before", "kill_after")
SIGKILLED = -9


def points(prefix: str) -> list[str]:
    return [name for name, scope in cases.scopes().items() if name.startswith(prefix) and scope == "command"]


PAIRS = list(itertools.zip_longest(points("up."), points("down."), fillvalue=""))
EVERY = [(up, down, mode) for up, down in PAIRS for mode in KILLS]
TODAY = EVERY[cases.seed() % len(EVERY)]


@pytest.mark.parametrize("mode", KILLS)
def test_a_migration_killed_half_way_is_done_whole_by_the_next(tmp_path: Path, mode: str) -> None:
    assert dsec("ledger", "migrate", home=tmp_path, DSEC_FAULT=f"ledger.migrate:{mode}").returncode == SIGKILLED
    done = dsec("ledger", "migrate", home=tmp_path)
    assert done.returncode == 0, done.stderr
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", clock=SystemClock(), migrate=False)
    assert not ledger.needs_migration()
    assert ledger.check() == []
    ledger.close()


@pytest.mark.parametrize("mode", [*KILLS, "error"])
def test_a_backup_killed_half_way_leaves_a_whole_one_old_or_new(tmp_path: Path, mode: str) -> None:
    copy = tmp_path / "copies" / "ledger.db"
    copy.parent.mkdir()
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", clock=SystemClock())
    ledger.put_team("gpus", Team(name="before", nominal_devices=1))
    assert dsec("ledger", "backup", str(copy), home=tmp_path).returncode == 0
    ledger.put_team("gpus", Team(name="after", nominal_devices=1))
    assert dsec("ledger", "backup", str(copy), home=tmp_path, DSEC_FAULT=f"ledger.backup.write:{mode}").returncode != 0
    assert ("after" in _teams(copy)) == (mode == "kill_after")
    assert dsec("ledger", "backup", str(copy), home=tmp_path).returncode == 0
    assert "after" in _teams(copy)
    assert list(copy.parent.iterdir()) == [copy], "nothing half-made is left"
    ledger.close()


def test_an_up_and_a_down_killed_half_way_are_finished_by_the_next(tmp_path: Path) -> None:
    _up_and_down(tmp_path, *TODAY)


@pytest.mark.long
@pytest.mark.parametrize(("up", "down", "mode"), [case for case in EVERY if case != TODAY])
def test_every_up_and_down_killed_half_way_is_finished_by_the_next(
    tmp_path: Path, up: str, down: str, mode: str
) -> None:
    _up_and_down(tmp_path, up, down, mode)


def _up_and_down(home: Path, up: str, down: str, mode: str) -> None:
    print(f"up struck at {up}, down at {down}, {mode}")
    words = ("up", "--nodes", "1", "--gpus", "2", "--port", str(free_port()))
    try:
        struck = dsec(*words, home=home, DSEC_FAULT=f"{up}:{mode}" if up else "")
        assert struck.returncode in (SIGKILLED, 0)
        done = dsec(*words, home=home)
        assert done.returncode == 0, done.stderr
        assert dsec("queue", home=home).returncode == 0
        struck = dsec("down", home=home, DSEC_FAULT=f"{down}:{mode}" if down else "")
        assert struck.returncode in (SIGKILLED, 0)
    finally:
        done = dsec("down", home=home)
    assert done.returncode == 0, done.stderr
    assert not processes_of(home)
    assert (home / "ledger.db").exists(), "down keeps the history"


def _teams(copy: Path) -> set[str]:
    with sqlite3.connect(copy) as connection:
        return {name for (name,) in connection.execute("select name from teams")}
