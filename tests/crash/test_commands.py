"""A command that is killed half-way leaves something that the same command, typed again, puts right."""

import itertools
import json
import os
import signal
import sqlite3
from pathlib import Path

import httpx
import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.teams import Team
from dsec_workers.form import SHIPPED, default_template
from tests.crash import cases
from tests.crash.sightings import processes_of
from tests.deployments.test_command import dsec
from tests.fixtures.ledgers import new_ledger
from tests.fixtures.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_SECONDS = 240.0
KILLS = ("kill_before", "kill_after")
SIGKILLED = -9


ELSEWHERE = {"up.process_node.remove": "deletes nodes of a cluster that a smaller one replaces: needs a control plane"}
"""Points that no command of one machine reaches."""
BY_DOWN = {"up.cluster_cache.remove"}
"""Named after what `dsec up` wrote; `dsec down` passes it."""
CLUSTER_CACHE = "up.cluster_cache."


def points(prefix: str) -> list[str]:
    return [name for name, scope in cases.scopes().items() if name.startswith(prefix) and scope == "command"]


UPS = [point for point in points("up.") if point not in {*ELSEWHERE, *BY_DOWN}]
DOWNS = [*points("down."), *sorted(BY_DOWN)]
PAIRS = list(itertools.zip_longest(UPS, DOWNS, fillvalue=""))
EVERY = [(up, down, mode) for up, down in PAIRS for mode in KILLS]
TODAY = EVERY[cases.seed() % len(EVERY)]


def test_every_point_of_up_and_down_is_struck_or_excused() -> None:
    assert {*UPS, *DOWNS, *ELSEWHERE} == {*points("up."), *points("down.")}


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
    ledger = new_ledger(tmp_path / "ledger.db", clock=SystemClock())
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
    port = free_port()
    options = ("--cluster-cache",) if CLUSTER_CACHE in up + down else ()
    words = ("up", "--nodes", "1", "--gpus", "2", "--port", str(port), *options)
    try:
        if up == "up.work_pool.upgrade":
            assert dsec(*words, home=home, seconds=PATIENCE_SECONDS).returncode == 0
            _age_the_form(port)
        if up:
            struck = dsec(*words, home=home, seconds=PATIENCE_SECONDS, DSEC_FAULT=f"{up}:{mode}")
            assert struck.returncode == SIGKILLED, f"up did not pass {up}"
        done = dsec(*words, home=home, seconds=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        assert dsec("queue", home=home).returncode == 0
        if down:
            struck = dsec(*_reaching(home, down), home=home, DSEC_FAULT=f"{down}:{mode}")
            assert struck.returncode == SIGKILLED, f"down did not pass {down}"
    finally:
        done = dsec("down", home=home)
    assert done.returncode == 0, done.stderr
    assert not processes_of(home)
    if down != "down.purge":
        assert (home / "ledger.db").exists(), "down keeps the history"


def _reaching(home: Path, point: str) -> tuple[str, ...]:
    """The `down` that passes the point."""
    if point == "down.background.kill":  # only what does not end when it is asked is killed
        worker = json.loads((home / "run" / "worker.json").read_text())
        os.kill(worker["process"]["pid"], signal.SIGSTOP)
    return ("down", "--purge", "--yes") if point == "down.purge" else ("down",)


def _age_the_form(port: int) -> None:
    """The pool as an older version made it: without a field that this one has."""
    template = default_template()
    for form in (template, template[SHIPPED]["shipped"]):
        del form["variables"]["properties"]["max_runtime"], form["job_configuration"]["max_runtime"]
    url = f"http://127.0.0.1:{port}/api/work_pools/dsec"
    httpx.patch(url, json={"base_job_template": template}).raise_for_status()


def _teams(copy: Path) -> set[str]:
    with sqlite3.connect(copy) as connection:
        return {name for (name,) in connection.execute("select name from teams")}
