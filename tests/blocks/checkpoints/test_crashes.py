"""A kill at any durable step of saving, uploading, committing and tidying leaves a store that a run resumes from.

The points are read from the source, so a new one is struck as soon as it exists. What `save` acknowledged must be
there again once the uploader has been restarted; what was committed must be there without it. `make test` strikes
today's part, as tests/crash does.
"""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.spool import CLOSED
from dsec_blocks.checkpoints.uploader import main as upload
from dsec_blocks.gateways.faults import ENV_FAULT, ENV_FAULT_LOG
from tests.blocks.checkpoints.ranks import Ranks
from tests.crash.cases import seed
from tests.fixtures.rotation import in_turn
from tools.fault_points import ROOT, points_in, scope_of

pytestmark = pytest.mark.slow
MODES = ("kill_before", "kill_after", "lost", "error")
SAVES = 24
"""Enough for retention and for old HEAD files to be pruned."""


def points(*, s3: bool) -> list[str]:
    found = set()
    for path in (ROOT / "dsec_blocks" / "checkpoints").rglob("*.py"):
        found |= {point.name for point in points_in(path.read_text(), path=str(path)) if point.name}
    # A person at a prompt types the command again, and the janitor comes again: neither is on a save's path.
    elsewhere = {name for name in found if scope_of(name) in ("command", "janitor")}
    other_place = {"checkpoint.head.publish", "checkpoint.head.prune"} if s3 else {"checkpoint.head.put"}
    return sorted(found - elsewhere - other_place)


def struck(points: list[str], *, days: int) -> list[Any]:
    """Point × mode, in turn: in one day each point in some mode and each mode at some point."""
    pairs = [(point, MODES[(place + turn) % 4]) for place, point in enumerate(points) for turn in range(4)]
    return in_turn(pairs, day=seed(), days=days)


def in_a_child(work: Callable[[], None], *, fault: str = "", log: Path | None = None) -> int:
    """Run `work` in a forked child with a fault armed; its exit status."""
    pid = os.fork()
    if pid == 0:
        os.environ[ENV_FAULT] = fault
        if log is not None:
            os.environ[ENV_FAULT_LOG] = str(log)
        try:
            work()
        except BaseException:  # the injected error ends the child as it would end a rank
            if not fault:
                traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(address: StoreAddress, directory: Path, *, attempt: int, first: int, saves: int = SAVES) -> None:
    """Save one step after another, each uploaded before the next; note what was acknowledged."""
    ranks = Ranks(address, directory, attempt=attempt)
    ranks.restore()
    for step in range(first, first + saves):
        ranks.ranks[0].save(step, {"step": step})
        with (directory / "acknowledged").open("a") as file:
            file.write(f"{step}\n")
        ranks.upload()


def acknowledged(directory: Path) -> int:
    path = directory / "acknowledged"
    return max(map(int, path.read_text().split()), default=0) if path.exists() else 0


def recover(directory: Path, *, attempt: int) -> None:
    """What the supervisor does: the uploader is started again, and told that nothing more will come."""
    spool = directory / f"spool-{attempt}"
    spool.mkdir(parents=True, exist_ok=True)
    (spool / CLOSED).touch()
    assert upload(spool, None) == 0


def strike(address: StoreAddress, directory: Path, fault: str, *, saves: int = SAVES) -> None:
    in_a_child(lambda: train(address, directory, attempt=1, first=1, saves=saves), fault=fault)
    in_a_child(lambda: recover(directory, attempt=1), fault=fault)  # and once more while recovering
    assert in_a_child(lambda: recover(directory, attempt=1)) == 0
    expected = acknowledged(directory)

    def resume() -> None:
        found = Ranks(address, directory, attempt=2).restore({"step": 0})[0]["step"]
        assert found in (expected, expected + 1), f"resumed at {found}, acknowledged was {expected}"

    if expected or CommitLog(address.open(), "run-1").exists():
        assert in_a_child(resume) == 0
    assert in_a_child(lambda: train(address, directory, attempt=3, first=expected + 2, saves=4)) == 0
    log = CommitLog(address.open(), "run-1")
    head = log.head()
    for commit in head.commits:
        log.verify(log.manifest(commit))
    stored = {tuple(map(int, key.split("/")[2:4])) for key in log.place.keys("ckpt/run-1/") if "/rank-" in key}
    assert stored == {(commit.step, commit.attempt) for commit in head.commits}, "garbage is left, or data is missing"


@pytest.mark.parametrize(("point", "mode"), struck(points(s3=False), days=2))
def test_a_directory_survives_a_fault_at_every_point(
    tmp_path: Path, point: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_LAST_COMMIT", "")
    for visit in ("1", "2", "0") if point == "checkpoint.head.publish" else ("2",):
        directory = tmp_path / visit
        directory.mkdir()
        strike(open_store(directory / "store"), directory, f"{point}:{mode}:{visit}")


@pytest.mark.parametrize(("point", "mode"), struck(points(s3=True), days=4))
def test_a_real_s3_store_survives_a_fault_at_every_point(
    s3_store: object, tmp_path: Path, point: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_LAST_COMMIT", "")
    strike(s3_store.address, tmp_path, f"{point}:{mode}:2", saves=6)  # type: ignore[attr-defined]


def test_every_point_is_reached(tmp_path: Path) -> None:
    log = tmp_path / "points"
    address = open_store(tmp_path / "store")
    assert in_a_child(lambda: train(address, tmp_path, attempt=1, first=1), log=log) == 0
    assert set(points(s3=False)) <= set(log.read_text().split())
