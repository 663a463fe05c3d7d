"""The checkpoints' failures that have a name of their own: a store that is away, an uploader that slept, retention."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.places import Place
from dsec_blocks.gateways.faults import ENV_FAULT
from dsec_blocks.model.errors import CheckpointFenced
from dsec_blocks.model.gangs import GangState
from tests.blocks.checkpoints.ranks import Ranks
from tests.blocks.checkpoints.test_crashes import recover
from tests.crash.play import Stage
from tests.crash.sightings import stopped
from tests.crash.test_by_name import judge
from tests.crash.world import World
from tests.deployments.test_command import dsec
from tests.fixtures.s3 import ACCESS_KEY, SECRET_KEY, S3Store
from tests.integration.outage import proxied

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
GRACE_SECONDS = 3.0
PATIENCE_SECONDS = 60.0


@pytest.fixture(params=["directory", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    if request.param == "directory":
        return open_store(tmp_path / "store")
    return request.getfixturevalue("s3_store").address


@pytest.fixture
def world(stage: Stage, tmp_path: Path) -> Iterator[World]:
    world = World(server=stage.server, home=tmp_path, zygote=stage.zygote, may_repeat=False)
    yield world
    world.close()


def test_a_store_that_is_away_through_the_whole_grace_costs_no_step(world: World, s3_store: S3Store) -> None:
    """The spool keeps what the evicted gang left, its devices go on, and the commit lands once the store is back."""
    with proxied(urlsplit(s3_store.endpoint_url).port or 0) as proxy:
        store = f"s3://{s3_store.bucket}/runs?endpoint=http://127.0.0.1:{proxy.port}"
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        world.begin()
        low = world.train("low", steps=60, nodes=2, devices_per_node=2, grace=f"{GRACE_SECONDS:g}s", env=keys,
                          parameters={"store": store, "lingers": True})  # fmt: skip
        world.wait_for_note(low, what="step", step=30)  # it stays there until it is told to leave
        world.wait("low to commit", lambda: (gang := world.gang(low)) and gang.last_step == 30)
        proxy.cut()
        urgent = world.train("urgent", steps=3, nodes=1, devices_per_node=1, priority=100)
        told_at = world.wait("the notice", lambda: world.gang(low).state is GangState.EVICTING and time.monotonic())  # type: ignore[union-attr]
        world.wait("urgent to be over", lambda: world.state(urgent)[0] == "COMPLETED")
        world.wait("the grace to be over", lambda: time.monotonic() - told_at > GRACE_SECONDS + 1)
        kept = sorted((world.home / "gangs" / f"{low}-1").glob("spool/*/*/rank-*.shard"))
        assert len(kept) == 4, f"the spool keeps a shard of each rank, whatever the grace: {kept}"
        assert not [note for note in world.notes(low) if note["attempt"] > 1]
        proxy.restore()
        world.wait_until_over(90)
    last = max(note["step"] for note in world.notes(low) if note["what"] == "step" and note["attempt"] == 1)
    begun = {note["step"] for note in world.notes(low) if note["what"] == "begin" and note["attempt"] == 2}
    assert begun == {last + 1}, "it resumes from the step that it was evicted at"
    judge(world)


def test_a_run_goes_back_to_the_step_that_somebody_chose_while_it_ran(world: World) -> None:
    world.may_repeat = True
    world.begin()
    run = world.train("run", steps=60, nodes=1, devices_per_node=2, grace="8s", parameters={"lingers": True})
    world.wait("it to commit", lambda: (gang := world.gang(run)) and gang.last_step == 30)
    log = CommitLog(open_store(world.store).open(), run)
    step = min(commit.step for commit in log.head().commits)  # a slow uploader leaves the oldest ones out
    words = ("checkpoint", "resume", run[:8], "--from", str(step), "--store", f"file://{world.store}")
    chosen = dsec(*words, home=world.home)
    assert chosen.returncode == 0, chosen.stderr
    world.ledger.wish(world.pool, "evict", run, {}, by="crash", why="a test")
    world.wait_until_over()
    begun = [(note["attempt"], note["step"]) for note in world.notes(run) if note["what"] == "begin"]
    assert sorted(begun) == [(1, 0), (1, 0), (2, step), (2, step)]
    ran = [note["step"] for note in world.notes(run) if note["what"] == "step" and note["attempt"] == 1]
    assert max(ran) >= step, "it had gone on from there"
    judge(world)


@pytest.mark.parametrize("point", ["checkpoint.shard.put", "checkpoint.manifest.put", "checkpoint.head"])
def test_an_uploader_that_was_stopped_is_fenced_when_it_goes_on_and_changes_nothing(
    address: StoreAddress, tmp_path: Path, point: str, capfd: pytest.CaptureFixture[str]
) -> None:
    old = Ranks(address, tmp_path)
    old.restore()
    old.save(10)
    old.save(20, upload=False)
    if point == "checkpoint.head":
        point += ".put" if address.url.startswith("s3:") else ".publish"
    uploader = os.fork()
    if uploader == 0:
        os.environ[ENV_FAULT] = f"{point}:stall"
        os._exit(_exit_code(lambda: recover(tmp_path, attempt=1)))
    try:
        _wait("it to be stopped", lambda: stopped([uploader]))
        new = Ranks(address, tmp_path, attempt=2)
        assert new.restore() == [{"step": 10}]
        new.save(12)
        log = CommitLog(address.open(), "run-1")
        head, keys = log.head(), set(log.place.keys("ckpt/run-1/"))
        os.kill(uploader, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(uploader, 0)[1]) == 0
    except BaseException:
        os.kill(uploader, signal.SIGKILL)
        raise
    assert "attempt 1 may no longer commit checkpoints; attempt 2 owns them" in capfd.readouterr().err
    assert log.head() == head
    added = set(log.place.keys("ckpt/run-1/")) ^ keys
    assert all("/000000000020/000001/" in key for key in added), "only below the step that it never committed"
    assert not list(old.spool.glob("*/*.000001")), "it dropped what nobody may commit any more"
    for commit in head.commits:
        log.verify(log.manifest(commit))
    new.save(14)
    assert not list(log.place.keys("ckpt/run-1/000000000020/")), "the next sweep takes away what it left"
    assert Ranks(address, tmp_path, attempt=3).restore() == [{"step": 14}]


@pytest.mark.parametrize("read", ["manifest-", "rank-"])
def test_a_resume_during_which_retention_removes_its_commit_takes_the_next_one(
    address: StoreAddress, tmp_path: Path, read: str
) -> None:
    """It has read HEAD and stalls; a snapshot that was still on its way is committed, and its commit swept away."""
    address = replace(address, keep=1)
    first = Ranks(address, tmp_path, world_size=2)
    first.restore()
    first.save(10)
    again = Ranks(address, tmp_path, world_size=2)  # the ranks were started again within the attempt

    def meanwhile() -> None:
        first.save(20)
        assert not list(address.open().keys("ckpt/run-1/000000000010/")), "nothing was swept away: nothing is tested"

    _stall(again, read, meanwhile)
    assert again.restore("start") == [{"step": 20}] * 2
    assert [rank.step for rank in again.ranks] == [20, 20]
    again.save(30)
    assert Ranks(address, tmp_path, attempt=2, world_size=2).restore() == [{"step": 30}] * 2


@pytest.mark.parametrize("read", ["manifest-", "rank-"])
def test_a_resume_that_was_overtaken_by_a_newer_attempt_is_told_so(
    address: StoreAddress, tmp_path: Path, read: str
) -> None:
    address = replace(address, keep=1)
    first = Ranks(address, tmp_path)
    first.restore()
    first.save(10)
    second = Ranks(address, tmp_path, attempt=2)

    def meanwhile() -> None:
        third = Ranks(address, tmp_path, attempt=3)
        assert third.restore() == [{"step": 10}]
        third.save(20)

    _stall(second, read, meanwhile)
    with pytest.raises(CheckpointFenced, match="attempt 3 owns them"):
        second.restore("start")
    assert Ranks(address, tmp_path, attempt=4).restore() == [{"step": 20}]


class _Stalled:
    """A store whose first read of a key with `part` in its name happens after something else has happened."""

    def __init__(self, place: Place, part: str, meanwhile: Callable[[], None]) -> None:
        self._place = place
        self._part = part
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def get(self, key: str) -> bytes:
        if self._part in key and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return self._place.get(key)


def _stall(ranks: Ranks, part: str, meanwhile: Callable[[], None]) -> None:
    log = ranks.ranks[-1]._log
    log.place = _Stalled(log.place, part, meanwhile)  # type: ignore[assignment]


def _exit_code(work: Callable[[], None]) -> int:
    try:
        work()
    except BaseException:  # a forked child must not return into pytest
        return 1
    return 0


def _wait(what: str, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
