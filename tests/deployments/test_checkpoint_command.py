"""`dsec checkpoint` on a store with a run in it: what a person types, and one line for every mistake."""

import json
import os
from pathlib import Path

import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from tests.blocks.checkpoints.ranks import Ranks
from tests.deployments.test_command import dsec

pytestmark = pytest.mark.slow
RUN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def store(tmp_path: Path) -> StoreAddress:
    address = open_store(tmp_path / "store")
    ranks = Ranks(address, tmp_path, run=RUN)
    ranks.restore()
    for step in (10, 20):
        ranks.save(step)
    return address


def run(store: StoreAddress, tmp_path: Path, *words: str):
    (tmp_path / "home").mkdir(exist_ok=True)
    return dsec("checkpoint", *words, "--store", store.url, home=tmp_path / "home")


def test_commits_are_listed_verified_exported_chosen_and_removed(store: StoreAddress, tmp_path: Path) -> None:
    listed = json.loads(run(store, tmp_path, "ls", "1111", "--json").stdout)
    assert [entry["step"] for entry in listed] == [20, 10]
    assert run(store, tmp_path, "verify", "1111").returncode == 0
    assert run(store, tmp_path, "resume", "1111", "--from", "10").returncode == 0
    assert "resumes here next" in run(store, tmp_path, "ls", "1111").stdout
    assert run(store, tmp_path, "export", "1111", str(tmp_path / "out"), "--step", "10").returncode == 0
    assert (tmp_path / "out" / "rank-00000.json").exists()
    assert run(store, tmp_path, "rm", "1111", "--step", "20").returncode == 0
    assert run(store, tmp_path, "rm", "1111", "--all").returncode == 0
    assert "no checkpoints" in run(store, tmp_path, "ls").stdout


def test_a_broken_commit_is_named_and_the_exit_code_says_so(store: StoreAddress, tmp_path: Path) -> None:
    (shard,) = [key for key in store.open().keys(f"ckpt/{RUN}/000000000010/") if "rank-" in key]
    (tmp_path / "store" / shard).write_bytes(b"torn")
    verified = run(store, tmp_path, "verify", "1111")
    assert verified.returncode == 1
    assert "step 20 of attempt 1: whole" in verified.stdout and "step 10 of attempt 1: broken" in verified.stdout


def test_what_dead_writers_left_is_removed_and_what_is_committed_or_young_stays(
    store: StoreAddress, tmp_path: Path
) -> None:
    place = store.open()
    folder = tmp_path / "store" / "ckpt" / RUN / "000000000015" / "000001"
    place.put(f"ckpt/{RUN}/000000000015/000001/rank-00000-killed", b"half", at="test.put")
    place.put(f"ckpt/{RUN}/000000000025/000001/rank-00000-uploading", b"half", at="test.put")
    (folder / ".rank-00000.dead").write_bytes(b"half")
    os.utime(folder / ".rank-00000.dead", (1, 1))
    (folder.parent.parent / "000000000025" / "000001" / ".rank-00001.alive").write_bytes(b"half")
    removed = run(store, tmp_path, "gc")
    assert removed.returncode == 0, removed.stderr
    assert "1 unfinished uploads and 1 objects removed" in " ".join(removed.stdout.split())
    assert "0 unfinished uploads and 0 objects removed" in " ".join(run(store, tmp_path, "gc").stdout.split())
    assert list(place.keys(f"ckpt/{RUN}/000000000025/")), "an attempt that is not over may still be uploading it"
    assert run(store, tmp_path, "verify", "1111").returncode == 0


def test_fresh_has_the_next_attempt_start_over(store: StoreAddress, tmp_path: Path) -> None:
    answer = run(store, tmp_path, "resume", "1111", "--fresh")
    assert answer.returncode == 0, answer.stderr
    assert "starts over at step 0" in " ".join(answer.stdout.split())
    assert "starts over" in run(store, tmp_path, "ls", "1111", "--json").stdout
    assert Ranks(store, tmp_path, attempt=2, run=RUN).restore("start") == ["start"]


def test_fresh_works_when_the_store_lost_the_run_if_it_is_named_in_full(store: StoreAddress, tmp_path: Path) -> None:
    assert run(store, tmp_path, "rm", "1111", "--all").returncode == 0
    assert "whole id" in run(store, tmp_path, "resume", "1111", "--fresh").stderr
    assert run(store, tmp_path, "resume", RUN, "--fresh").returncode == 0
    assert Ranks(store, tmp_path, attempt=2, run=RUN).restore("start") == ["start"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ls", "9999"), "no run of that name has any"),
        (("verify", "1111", "--step", "11"), "there is no commit of step 11; there are: 10, 20"),
        (("rm", "1111"), "say which: --step STEP"),
        (("resume", "1111"), "say which: --from STEP"),
        (("resume", "1111", "--from", "3"), "there is no commit of step 3"),
    ],
)
def test_a_mistake_is_one_line(store: StoreAddress, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    answer = run(store, tmp_path, *words)
    assert answer.returncode != 0
    assert told in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr
