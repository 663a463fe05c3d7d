"""Somebody has a run go back to an earlier step, or start over: the next attempt does, whatever this one saves."""

from pathlib import Path

import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.model.errors import CheckpointError, CheckpointMissing
from dsec_blocks.model.names import ENV_LAST_COMMIT
from tests.blocks.checkpoints.ranks import Ranks


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    return open_store(tmp_path / "store")


def _log(address: StoreAddress) -> CommitLog:
    return CommitLog(address.open(), "run-1")


def _saved(address: StoreAddress, tmp_path: Path, *steps: int) -> Ranks:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    for step in steps:
        ranks.save(step)
    return ranks


def test_a_choice_outlives_what_the_running_attempt_saves_when_it_is_evicted(
    address: StoreAddress, tmp_path: Path
) -> None:
    running = _saved(address, tmp_path, 10, 20)
    _log(address).choose_step(10)
    for step in (30, 40, 50, 60):  # more than are kept: the chosen one stays
        running.save(step)
    second = Ranks(address, tmp_path, attempt=2)
    assert second.restore() == [{"step": 10}]
    second.save(15)
    assert Ranks(address, tmp_path, attempt=3).restore() == [{"step": 15}]


def test_a_run_starts_over_and_later_attempts_resume_what_that_saved(
    address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = _saved(address, tmp_path, 10)
    _log(address).start_over()
    running.save(20)  # evicted for it
    monkeypatch.setenv(ENV_LAST_COMMIT, "20")
    assert Ranks(address, tmp_path, attempt=2).restore("start") == ["start"]
    # It died before it committed anything: the choice still holds.
    third = Ranks(address, tmp_path, attempt=3)
    assert third.restore("start") == ["start"]
    third.save(5)
    assert Ranks(address, tmp_path, attempt=4).restore("start") == [{"step": 5}]


def test_starting_over_is_the_way_out_of_what_a_resume_refuses(
    address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saved(address, tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"dsec checkpoint resume run-1 --fresh --store .*store"):
        Ranks(address, tmp_path, attempt=2, world_size=2).restore("start")
    _log(address).remove_all()
    monkeypatch.setenv(ENV_LAST_COMMIT, "10")
    with pytest.raises(CheckpointMissing, match=r"dsec checkpoint resume run-1 --fresh"):
        Ranks(address, tmp_path, attempt=3).restore("start")
    _log(address).start_over()
    assert Ranks(address, tmp_path, attempt=4, world_size=2).restore("start") == ["start"] * 2
