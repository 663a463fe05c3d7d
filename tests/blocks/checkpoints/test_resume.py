"""What a run resumes from, on a directory and on S3; each test is named by what somebody once complained of."""

import threading
from pathlib import Path

import numpy as np
import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.model.errors import CheckpointError, CheckpointFenced, CheckpointMissing
from dsec_blocks.model.names import ENV_FRESH_START, ENV_LAST_COMMIT
from tests.blocks.checkpoints.ranks import Ranks


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    if request.param == "directory":
        return open_store(tmp_path / "store")
    return request.getfixturevalue("s3_store").address


def keys(address: StoreAddress, part: str = "") -> list[str]:
    return sorted(key for key in address.open().keys("ckpt/run-1/") if part in key)


def test_each_rank_gets_back_its_own_state_step_and_position(address: StoreAddress, tmp_path: Path) -> None:
    first = Ranks(address, tmp_path, world_size=2)
    assert first.restore({"fresh": True}) == [{"fresh": True}] * 2
    first.all(lambda rank, number: rank.save(40, {"weights": np.full(3, number)}, position={"file": number}))
    first.upload()
    second = Ranks(address, tmp_path, attempt=2, world_size=2)
    states = second.restore()
    assert [state["weights"].tolist() for state in states] == [[0, 0, 0], [1, 1, 1]]
    assert [(rank.step, rank.position) for rank in second.ranks] == [(40, {"file": 0}), (40, {"file": 1})]
    assert [said["step"] for said in first.said if said["op"] == "committed"] == [40]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 3)], ids=["shrunk", "grown"])
def test_an_elastic_gang_of_replicas_resumes_at_another_size_and_one_of_parts_is_told_what_to_do(
    address: StoreAddress, tmp_path: Path, before: int, after: int
) -> None:
    first = Ranks(address, tmp_path, world_size=before, replicated=True)
    first.restore()
    first.save(40)
    with pytest.raises(CheckpointError, match=f"written by {before} ranks and this gang has {after}.*replicated=True"):
        Ranks(address, tmp_path, attempt=2, world_size=after).restore()
    again = Ranks(address, tmp_path, attempt=3, world_size=after, replicated=True)
    assert again.restore() == [{"step": 40}] * after
    assert {rank.step for rank in again.ranks} == {40}
    again.save(41)
    back = Ranks(address, tmp_path, attempt=4, world_size=before, replicated=True)
    assert back.restore() == [{"step": 41}] * before


def test_a_snapshot_mutated_right_after_save_is_what_it_was_when_saved(address: StoreAddress, tmp_path: Path) -> None:
    """P14: an asynchronous save wrote newer values."""
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    weights = np.zeros(100_000)
    ranks.ranks[0].save(1, weights)
    weights[:] = 7
    ranks.upload()
    assert Ranks(address, tmp_path, attempt=2).restore()[0].sum() == 0


def test_nothing_points_to_a_checkpoint_before_it_is_whole(address: StoreAddress, tmp_path: Path) -> None:
    """P2: "latest" moved, and old checkpoints were deleted, before the data was there."""
    ranks = Ranks(address, tmp_path, world_size=2)
    ranks.restore()
    ranks.save(10)
    ranks.ranks[0].save(20, {"step": 20})  # rank 1 dies before it saves
    ranks.upload()
    assert keys(address, "/000000000020/") == []
    again = Ranks(address, tmp_path, attempt=2, world_size=2)
    assert again.restore() == [{"step": 10}] * 2


@pytest.mark.parametrize("victim", ["rank-00001", "manifest"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_torn_newest_checkpoint_is_skipped_with_a_word_for_the_one_before(
    address: StoreAddress, tmp_path: Path, victim: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """P5: the directory with the highest number was taken, though files were missing in it."""
    ranks = Ranks(address, tmp_path, world_size=2)
    ranks.restore()
    ranks.save(10)
    ranks.save(20)
    place = address.open()
    key = next(key for key in keys(address, "/000000000020/") if victim in key)
    content = place.get(key)
    place.remove(key, at="test.remove")
    if damage == "cut":
        place.put(key, content[:-3], at="test.put")
    again = Ranks(address, tmp_path, attempt=2, world_size=2)
    assert again.restore() == [{"step": 10}] * 2
    assert "the commit of step 20 (attempt 1) is skipped" in capsys.readouterr().err
    again.save(15)
    third = Ranks(address, tmp_path, attempt=3, world_size=2)
    assert third.restore() == [{"step": 15}] * 2


def test_the_list_of_checkpoints_is_read_from_the_store_not_remembered(address: StoreAddress, tmp_path: Path) -> None:
    """P4: a save that failed stayed in a cache and was later restored."""
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    other = Ranks(address, tmp_path, attempt=2)
    other.restore()
    other.save(20)
    assert [commit.step for commit in CommitLog(address.open(), "run-1").head().newest_first] == [20, 10]


def test_two_attempts_that_save_the_same_step_do_not_mix_their_files(address: StoreAddress, tmp_path: Path) -> None:
    """P7: a dead attempt's files were mixed with its successor's."""
    old = Ranks(address, tmp_path, world_size=2)
    old.restore()
    old.save(10, lambda rank: f"old {rank}", upload=False)
    new = Ranks(address, tmp_path, attempt=2, world_size=2)
    new.restore()
    new.save(10, lambda rank: f"new {rank}")
    old.upload()
    assert Ranks(address, tmp_path, attempt=3, world_size=2).restore() == ["new 0", "new 1"]


def test_an_uploader_of_an_older_attempt_is_fenced_and_drops_its_spool(
    address: StoreAddress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Correction 2: a commit below the attempt's own prefix fences nothing."""
    old = Ranks(address, tmp_path)
    old.restore()
    old.save(10)
    old.save(99, upload=False)
    new = Ranks(address, tmp_path, attempt=2)
    assert new.restore() == [{"step": 10}]
    old.upload()
    assert "attempt 1 may no longer commit checkpoints; attempt 2 owns them" in capsys.readouterr().err
    assert not any(said["op"] == "committed" and said["step"] == 99 for said in old.said)
    assert list(old.spool.glob("*/*.000001")) == []
    assert Ranks(address, tmp_path, attempt=3).restore() == [{"step": 10}]


def test_an_older_attempt_that_wakes_up_may_not_even_begin(address: StoreAddress, tmp_path: Path) -> None:
    Ranks(address, tmp_path, attempt=1).restore()
    Ranks(address, tmp_path, attempt=2).restore()
    with pytest.raises(CheckpointFenced, match="attempt 2 owns them"):
        Ranks(address, tmp_path, attempt=1).restore()


def test_a_checkpoint_of_another_number_of_ranks_is_refused(address: StoreAddress, tmp_path: Path) -> None:
    """P16: files were named by world size and a restore with another one failed obscurely."""
    ranks = Ranks(address, tmp_path, world_size=2)
    ranks.restore()
    ranks.save(10)
    with pytest.raises(CheckpointError, match="step 10 was written by 2 ranks and this gang has 1"):
        Ranks(address, tmp_path, attempt=2).restore()


def test_the_newest_three_are_kept_and_the_one_the_gang_resumed_from(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    again = Ranks(address, tmp_path, attempt=2)
    again.restore()
    for step in (20, 30, 40, 50):
        again.save(step)
    kept = sorted({key.split("/")[2] for key in keys(address, "rank-")})
    assert [int(step) for step in kept] == [10, 30, 40, 50]


def test_what_a_killed_attempt_left_behind_is_swept_by_the_next(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    address.open().put("ckpt/run-1/000000000077/000001/rank-00000-dead", b"half", at="test.put")
    ranks.save(10)
    assert keys(address, "dead")  # the attempt may still be uploading it
    again = Ranks(address, tmp_path, attempt=2)
    again.restore()
    again.save(20)
    assert not keys(address, "dead")


class TestStartingWithoutACheckpoint:
    """P9: "restored from checkpoint", but the epoch restarts at 1."""

    def test_an_attempt_before_any_commit_starts_from_the_beginning(
        self, address: StoreAddress, tmp_path: Path
    ) -> None:
        Ranks(address, tmp_path).restore()
        assert Ranks(address, tmp_path, attempt=2).restore("start") == ["start"]

    def test_it_fails_when_every_commit_is_torn(self, address: StoreAddress, tmp_path: Path) -> None:
        ranks = Ranks(address, tmp_path)
        ranks.restore()
        ranks.save(10)
        for key in keys(address, "rank-"):
            address.open().remove(key, at="test.remove")
        with pytest.raises(CheckpointMissing, match=r"none of its commits can be read \(step 10 of attempt 1\)"):
            Ranks(address, tmp_path, attempt=2).restore("start")

    def test_it_fails_when_the_store_was_emptied(self, address: StoreAddress, tmp_path: Path) -> None:
        ranks = Ranks(address, tmp_path)
        ranks.restore()
        ranks.save(10)
        place = address.open()
        for key in list(place.keys("ckpt/run-1")):
            place.remove(key, at="test.remove")
        for attempt in (2, 3):  # failing once must not make the next attempt believe that all is well
            with pytest.raises(CheckpointMissing, match=f"no commit is there.*{ENV_FRESH_START}"):
                Ranks(address, tmp_path, attempt=attempt).restore("start")

    def test_it_goes_by_what_the_ledger_knows(
        self, address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ENV_LAST_COMMIT, "")
        assert Ranks(address, tmp_path, attempt=2).restore("start") == ["start"]
        monkeypatch.setenv(ENV_LAST_COMMIT, "40")
        with pytest.raises(CheckpointMissing, match="although step 40 was committed"):
            Ranks(address, tmp_path, attempt=3, run="run-2").restore("start")

    def test_a_fresh_start_on_purpose_is_made_once_and_then_resumed(
        self, address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranks = Ranks(address, tmp_path)
        ranks.restore()
        ranks.save(10)
        monkeypatch.setenv(ENV_FRESH_START, "1")
        fresh = Ranks(address, tmp_path, attempt=2)
        assert fresh.restore("start") == ["start"]
        fresh.save(5)
        assert Ranks(address, tmp_path, attempt=3).restore("start") == [{"step": 5}]


def test_a_snapshot_still_in_the_spool_is_committed_before_the_same_attempt_resumes(
    address: StoreAddress, tmp_path: Path
) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    ranks.save(20, upload=False)
    again = Ranks(address, tmp_path)
    threading.Timer(0.2, ranks.upload).start()
    assert again.restore() == [{"step": 20}]
