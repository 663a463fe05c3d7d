"""What is kept for good, what is gone back to, what is removed, and what dead writers leave behind."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.exporting import export
from dsec_blocks.checkpoints.heads import Commit, Head, committed, raised
from dsec_blocks.model.errors import CheckpointError, CheckpointMissing
from tests.blocks.checkpoints.ranks import Ranks
from tests.fixtures.s3 import S3Store


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    return open_store(tmp_path / "store")


def log(address: StoreAddress) -> CommitLog:
    return CommitLog(address.open(), "run-1")


def steps(address: StoreAddress) -> list[int]:
    return sorted(commit.step for commit in log(address).head().commits)


@given(st.lists(st.integers(1, 500), unique=True, max_size=30), st.integers(1, 3), st.sampled_from([0, 7, 100]))
def test_the_first_of_each_period_stays_and_the_newest_always_do(raw: list[int], keep: int, every: int) -> None:
    head = raised(None, run="r", attempt=1)
    for step in sorted(raw):
        new = Commit(step=step, attempt=1, manifest=f"m{step}", digest=f"d{step}")
        head = committed(head, new, run="r", keep=keep, keep_every=every)
    kept = {commit.step for commit in head.commits}
    firsts = {min(s for s in raw if s // every == period) for period in {s // every for s in raw}} if every else set()
    assert kept == set(sorted(raw)[-keep:]) | {step for step in firsts if step >= every}


def test_a_store_keeps_one_of_each_n_steps_and_its_objects(tmp_path: Path) -> None:
    address = StoreAddress(url=f"file://{tmp_path}/store", keep=1, keep_every=100)
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    for step in (40, 100, 140, 180, 240, 280):
        ranks.save(step)
    assert steps(address) == [100, 240, 280]
    stored = {key.split("/")[2] for key in address.open().keys("ckpt/run-1/") if "/HEAD/" not in key}
    assert stored == {f"{step:012d}" for step in (100, 240, 280)}


def test_a_run_goes_back_to_the_step_that_was_chosen_and_its_later_commits_win(
    address: StoreAddress, tmp_path: Path
) -> None:
    first = Ranks(address, tmp_path)
    first.restore()
    for step in (10, 20, 30):
        first.save(step)
    log(address).choose_step(10)
    assert steps(address) == [10, 20, 30]  # nothing is removed by choosing
    assert Ranks(address, tmp_path, attempt=2).restore() == [{"step": 10}]
    # It died before it committed anything: the choice still holds.
    third = Ranks(address, tmp_path, attempt=3)
    assert third.restore() == [{"step": 10}]
    third.save(15)
    assert Ranks(address, tmp_path, attempt=4).restore() == [{"step": 15}]


def test_a_chosen_commit_that_cannot_be_read_is_not_silently_replaced_by_another(
    address: StoreAddress, tmp_path: Path
) -> None:
    first = Ranks(address, tmp_path)
    first.restore()
    first.save(10)
    first.save(20)
    log(address).choose_step(10)
    (shard,) = [key for key in address.open().keys("ckpt/run-1/000000000010/") if "rank-" in key]
    (tmp_path / "store" / shard).write_bytes(b"torn")
    with pytest.raises(CheckpointMissing, match="step 10"):
        Ranks(address, tmp_path, attempt=2).restore()


def test_a_step_that_does_not_exist_is_refused_with_those_that_do(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    with pytest.raises(CheckpointMissing, match="no commit of step 11; there are: 10"):
        log(address).choose_step(11)


def test_a_removed_step_is_gone_with_its_objects_and_the_rest_stays(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    ranks.save(20)
    assert log(address).remove_step(20) == 3
    assert steps(address) == [10]
    assert not list(address.open().keys("ckpt/run-1/000000000020/"))
    assert Ranks(address, tmp_path, attempt=2).restore() == [{"step": 10}]


def test_a_run_whose_checkpoints_were_all_removed_leaves_nothing(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    assert log(address).remove_all() > 3
    assert not list(address.open().keys("ckpt/"))


def test_an_exported_commit_is_readable_without_dsec(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path, world_size=2)
    ranks.restore()
    ranks.save(10, lambda rank: {"weights": {"a": np.full(3, rank, dtype=np.float32)}, "lr": 0.1, "blob": b"xyz"})
    found = log(address)
    export(found, found.head().newest_first[0], tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "rank-00001.safetensors")
    np.testing.assert_array_equal(arrays["state.weights.a"], np.full(3, 1, dtype=np.float32))
    assert arrays["state.blob"].tobytes() == b"xyz"
    assert '"lr": 0.1' in (tmp_path / "out" / "rank-00000.json").read_text()
    with pytest.raises(CheckpointError, match="is not empty"):
        export(found, found.head().newest_first[0], tmp_path / "out")


def test_temporary_files_of_dead_writers_are_removed_once_they_are_old(address: StoreAddress, tmp_path: Path) -> None:
    ranks = Ranks(address, tmp_path)
    ranks.restore()
    ranks.save(10)
    folder = next((tmp_path / "store").rglob("rank-*")).parent
    old, young = folder / ".rank-00000-x.dead", folder / ".rank-00000-y.alive"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert address.open().drop_unfinished(before=time.time() - 3600) == 1
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.slow
def test_parts_of_an_upload_that_was_killed_are_aborted_once_they_are_old(s3_store: S3Store) -> None:
    """C29: invisible and billed."""
    client, bucket = s3_store.client, s3_store.bucket
    for key in ("team-a/ckpt/run-1/x", "team-b/ckpt/run-1/x"):
        upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 5_242_880)
    place = s3_store.address.open()
    assert place.drop_unfinished(before=time.time() - 3600) == 0
    assert place.drop_unfinished(before=time.time() + 60) == 1
    left = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [entry["Key"] for entry in left] == ["team-b/ckpt/run-1/x"]
    assert place.drop_unfinished(before=time.time() + 60) == 0


def test_a_head_of_an_older_dsec_is_read() -> None:
    assert Head.from_json({"commits": [], "generation": 2}).resume_from is None
