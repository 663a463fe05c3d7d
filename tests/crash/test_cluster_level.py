"""Point × mode over a fetch through the cluster level: wherever a node is struck that fetches, resumes, fills, evicts
or takes over, every other node and the same node started again get exactly what the origin has, and nothing is left.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from dsec_blocks.cache.cluster_level import ClusterLevel
from dsec_blocks.gateways.faults import ENV_FAULT_LOG, MODES
from dsec_blocks.model.names import ENV_FAULT
from tests.crash import cases
from tests.crash.cluster_stories import (
    FILES,
    LARGE,
    PART_BYTES,
    STORIES,
    CountingOrigin,
    bring,
    level,
    make_origin,
)
from tests.fixtures.ledgers import migrated
from tests.fixtures.s3 import S3Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
OWN = ("dsec_blocks/cache/transfer/", "dsec_blocks/cache/cluster_level/", "dsec_blocks/ledger/fills.py")
RECORDED = Path(__file__).parent / "reached_cluster.json"


def points() -> list[str]:
    return [name for name, told in cases.told_of_points().items() if told["module"].startswith(OWN)]


@cache
def reached() -> dict[str, list[str]]:
    """Which story passes which points when nothing fails; `test_every_point_…` proves it."""
    return json.loads(RECORDED.read_text())


def story_of(point: str) -> str:
    return next(story for story in STORIES if point in reached()[story])


def todays() -> list[tuple[str, str]]:
    """One mode of every third point, since each case takes seconds; others tomorrow, all of them in fifteen days."""
    day = cases.seed()
    return [
        (point, MODES[(day // 3 + place) % len(MODES)])
        for place, point in enumerate(points())
        if (day + place) % 3 == 0
    ]


class World:
    """A bucket, a ledger, an origin, and nodes."""

    def __init__(self, root: Path, store: S3Store) -> None:
        self.root = root
        self.store = store
        self.ledger_url = migrated(root / "ledger.db")
        make_origin(root)

    def level(self, holder: str, **options: Any) -> ClusterLevel:
        return level(self.ledger_url, self.store.endpoint_url, self.store.bucket, holder, **options)

    def node(self, story: str, holder: str, **environment: str) -> "subprocess.Popen[bytes]":
        arguments = [story, str(self.root), self.ledger_url, self.store.endpoint_url, self.store.bucket, holder]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DSEC_")}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.cluster_stories", *arguments],
            env={**clean, **environment},
            stderr=subprocess.DEVNULL,
        )

    def before(self, story: str) -> None:
        """What a story finds when it begins."""
        if story == "unfinished":
            self.leave_an_upload()
        if story in ("fill", "unfinished", "parts", "breaker"):
            return
        got = bring(self.level("earlier"), CountingOrigin(), self.root, self.root / "staging-earlier")
        if story == "damaged":
            digest = next(one.digest for one in got if one.item.path == "b.bin")
            self.store.client.put_object(Bucket=self.store.bucket, Key=f"blobs/{digest}", Body=b"x" * 200_000)
        if story == "evict":
            # What the level holds is of yesterday; the bundle is another one today.
            for path in (self.root / "origin").rglob("*.bin"):
                os.utime(path, ns=(1, 1))
                path.write_bytes(path.read_bytes()[::-1])

    def leave_an_upload(self) -> None:
        """As a node leaves it that dies between two parts."""
        client, key = self.store.client, f"blobs/{'0' * 64}"
        upload = client.create_multipart_upload(Bucket=self.store.bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=self.store.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * PART_BYTES)

    def unfinished(self) -> list[str]:
        """The keys of uploads that were begun and never ended."""
        found = self.store.client.list_multipart_uploads(Bucket=self.store.bucket).get("Uploads", [])
        return [entry["Key"] for entry in found]

    def written(self) -> dict[str, Any]:
        """All that a fetch could have written: the store's objects and uploads, the ledger's leases and rules."""
        listed = self.store.client.list_objects_v2(Bucket=self.store.bucket).get("Contents", [])
        told = {entry["Key"]: (entry["ETag"], entry["Size"], entry["LastModified"]) for entry in listed}
        ledger = self.level("judge").ledger
        rows = {row.key: (row.holder, row.token, row.beat, row.ended) for row in ledger.fills().values()}
        return {**told, "uploads": self.unfinished(), "rows": rows, "rules": ledger.check()}

    def whole(self, holder: str, staging: str) -> int:
        """Fetch as one more node, compare with the origin; returns the bytes that the origin had to send."""
        origin = CountingOrigin()
        got = bring(self.level(holder), origin, self.root, self.root / staging)
        assert {one.item.path for one in got} == set(FILES)
        for one in got:
            wanted = (self.root / "origin" / one.item.path).read_bytes()
            is_right = one.path.read_bytes() == wanted
            assert is_right and one.digest == blake3(wanted).hexdigest(), one.item.path
        return origin.bytes_read

    def judge(self, *, leaves_leases: bool = False) -> None:
        """Everything that must hold once the dust has settled; `leaves_leases`: who was struck could not end them."""
        self.whole("second", "staging-second")
        self.whole("struck-again", "staging-struck")
        assert self.whole("third", "staging-third") == 0, "the level holds all of it, so nobody asks the origin"
        before = self.written()
        assert self.whole("fourth", "staging-fourth") == 0 and self.written() == before, "a second recovery has work"
        opened = self.level("judge")
        assert opened.ledger.check() == []
        for blob in opened.records.blobs():
            body = self.store.client.get_object(Bucket=self.store.bucket, Key=blob.key)["Body"].read()
            assert blake3(body).hexdigest() == blob.key.rpartition("/")[2]
        for record in opened.records.all().values():
            found = opened.records.bucket.stat(opened.records.blob(record.digest))
            assert found is not None and found.size == record.size_bytes
        named = {record.digest for record in opened.records.all().values()}
        rows = opened.ledger.fills()
        assert len(named) <= len(rows) + 1
        # A row that nobody ended holds nobody up: it is taken over from a filler that does not beat.
        left = [row for row in rows.values() if not row.ended]
        assert {row.holder for row in left} <= ({"struck"} if leaves_leases else set()), left


@pytest.fixture
def world(tmp_path: Path, s3_store: S3Store) -> World:
    return World(tmp_path, s3_store)


def struck(world: World, point: str, mode: str) -> None:
    story = story_of(point)
    world.before(story)
    once = ":1" if mode == "stall" else ""  # it is woken once
    child = world.node(story, "struck", **{ENV_FAULT: f"{point}:{mode}{once}"})
    if mode == "stall":
        _until_stopped(child)
        world.whole("meanwhile", "staging-meanwhile")  # it takes over, and must not hang
        child.send_signal(signal.SIGCONT)
    code = child.wait(60)
    assert (code == -signal.SIGKILL) == mode.startswith("kill"), code
    world.judge(leaves_leases=mode.startswith("kill") or point.startswith("ledger.fill."))
    if story == "unfinished":
        world.level("janitor", unfinished_seconds=0.0).tidy()
        assert world.unfinished() == [], "the next sweep takes it away"


def _until_stopped(child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        if stat[stat.rindex(")") + 2] == "T":
            return
        assert child.poll() is None, "it ended without reaching the point"
        time.sleep(0.01)
    raise AssertionError("it was never stopped")


@pytest.mark.parametrize("story", STORIES)
def test_a_story_without_a_fault_passes_the_points_it_is_recorded_with(story: str, world: World) -> None:
    world.before(story)
    log = world.root / "passed"
    assert world.node(story, "struck", **{ENV_FAULT_LOG: str(log)}).wait(60) == 0
    passed = sorted(set(log.read_text().split()) & set(points()))
    if os.environ.get("DSEC_CRASH_RECORD"):
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**known, story: passed}, indent=1, sort_keys=True) + "\n")
        reached.cache_clear()
    assert set(reached()[story]) <= set(passed), "record again: DSEC_CRASH_RECORD=1"
    world.judge()


def test_a_node_killed_between_two_parts_leaves_an_upload_that_the_next_sweep_removes(world: World) -> None:
    """C29: invisible and billed."""
    (world.root / "origin" / "large.bin").write_bytes(LARGE)
    assert world.node("parts", "struck").wait(60) == -signal.SIGKILL
    key = f"blobs/{blake3(LARGE).hexdigest()}"
    assert world.unfinished() == [key]
    origin = CountingOrigin()
    young = world.level("second")
    got = bring(young, origin, world.root, world.root / "staging-second")
    assert {one.item.path for one in got} == {*FILES, "large.bin"}
    assert world.unfinished() == [key], "it may be the upload of a node that lives"
    bring(world.level("third", unfinished_seconds=0.0), origin, world.root, world.root / "staging-third")
    assert world.unfinished() == [key], "who uploads nothing tidies nothing"
    (world.root / "origin" / "new.bin").write_bytes(b"new")
    bring(world.level("fourth", unfinished_seconds=0.0), origin, world.root, world.root / "staging-fourth")
    assert world.unfinished() == []
    body = world.store.client.get_object(Bucket=world.store.bucket, Key=key)["Body"].read()
    assert body == LARGE, "the copy that another node made is none of its business"


def test_every_point_of_a_fetch_through_the_level_is_reached() -> None:
    assert set(points()) == {point for passed in reached().values() for point in passed}


@pytest.mark.parametrize(("point", "mode"), todays())
def test_matrix(point: str, mode: str, world: World) -> None:
    struck(world, point, mode)


@pytest.mark.long
@pytest.mark.parametrize(("point", "mode"), [(p, m) for p in points() for m in MODES if (p, m) not in todays()])
def test_rest_of_the_matrix(point: str, mode: str, world: World) -> None:
    struck(world, point, mode)
