"""One node reads the origin however many ask, and whatever happens to that node or to the level, all get their data."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from dsec_blocks.cache.cluster_level import Through, Watermarks
from dsec_blocks.cache.cluster_level.records import key_of
from dsec_blocks.cache.errors import OriginRefused, OriginUnreachable
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.cache.transfer import Fetched, TransferSettings, fetch
from dsec_blocks.gateways.objects import Bucket, ObjectStoreError
from tests.blocks.cache.cluster_level.conftest import MIB, Level
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin
from tests.fixtures.s3 import S3Store

pytestmark = pytest.mark.slow
QUICK = TransferSettings(patience_seconds=20.0)


def fetched(level, items, staging: Path) -> list[Fetched]:
    got = fetch(items, origin=Through(level, WebOrigin()), staging=staging, settings=QUICK)
    level.behind.settle()
    return got


def assert_whole(got: list[Fetched], server: MisbehavingOrigin) -> None:
    for one in got:
        content = server.files[one.item.path]
        assert one.digest == blake3(content).hexdigest()
        assert one.path.read_bytes() == content


def origin_bytes(server: MisbehavingOrigin) -> int:
    return sum(server.bytes_asked(name) for name in server.files)


def test_eight_nodes_that_start_at_once_read_the_origin_once(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    levels = [level(f"node-{n}") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        all_got = list(pool.map(lambda n: fetched(levels[n], items, tmp_path / str(n)), range(8)))
    for got in all_got:
        assert_whole(got, origin_server)
    assert origin_bytes(origin_server) == sum(item.size_bytes for item in items)


def test_a_warm_bundle_starts_while_the_origin_is_down(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    uri = f"{origin_server.url}/one"
    filling = level("first")
    first = Through(filling, WebOrigin())
    fetch(first.list(uri), origin=first, staging=tmp_path / "first", settings=QUICK)
    filling.behind.settle()
    origin_server.close()
    monkeypatch.setattr("dsec_blocks.cache.origins.asking.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("dsec_blocks.cache.origins.asking.patiently.__kwdefaults__", {"seconds": 0.2})
    second = Through(level("second"), WebOrigin())
    assert_whole(fetch(second.list(uri), origin=second, staging=tmp_path / "second", settings=QUICK), origin_server)
    with pytest.raises(OriginUnreachable):  # nobody knows whether this one may read it
        Through(level("third", identity="somebody else"), WebOrigin()).list(uri)


def test_an_origin_that_refuses_is_never_answered_from_the_level(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    filling = level("first")
    through = Through(filling, WebOrigin())
    fetch(through.list(f"{origin_server.url}/one"), origin=through, staging=tmp_path, settings=QUICK)
    filling.behind.settle()
    monkeypatch.setattr(Exchange, "do_HEAD", lambda exchange: exchange.say(401, b""))
    with pytest.raises(OriginRefused):
        Through(level("second"), WebOrigin()).list(f"{origin_server.url}/one")


FILLER = """
import sys
from pathlib import Path
from dsec_blocks.cache.cluster_level import ClusterLevel, Through
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.cache.transfer import TransferSettings, fetch
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Bucket, Credentials
from dsec_blocks.ledger import Ledger
url, staging, ledger_url, endpoint, bucket, key, secret = sys.argv[1:]
clock = SystemClock()
store = Bucket(bucket, Credentials(endpoint_url=endpoint, access_key_id=key, secret_access_key=secret))
level = ClusterLevel(store, "cache", ledger=Ledger.open(ledger_url, clock=clock), clock=clock, holder="filler")
origin = Through(level, WebOrigin())
fetch(origin.list(url), origin=origin, staging=Path(staging), settings=TransferSettings(connections=1))
"""


def filler(url: str, staging: Path, ledger_url: str, store: S3Store) -> "subprocess.Popen[bytes]":
    arguments = [url, str(staging), ledger_url, store.endpoint_url, store.bucket]
    keys = [store.access_key_id, store.secret_access_key]
    return subprocess.Popen([sys.executable, "-c", FILLER, *arguments, *keys])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_filler_that_died_or_was_stopped_is_taken_over(
    how: signal.Signals, level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin,
    tmp_path: Path, ledger_url: str, s3_store: S3Store,
) -> None:  # fmt: skip
    (item, *_) = items
    watching = level("successor", takeover_seconds=3.0)
    hanging = [True]

    def hang(exchange: Exchange) -> bool:
        while hanging[0] and exchange.name == "one":
            time.sleep(0.05)
        return False

    origin_server.times(1, hang)
    child = filler(f"{origin_server.url}/one", tmp_path / "filler", ledger_url, s3_store)
    key = key_of(item)
    assert key is not None
    deadline = time.monotonic() + 60
    while not origin_server.asked["one"]:
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    child.send_signal(how)
    try:
        assert_whole(fetched(watching, [item], tmp_path / "successor"), origin_server)
        assert watching.ledger.fills([key])[key].holder == "successor"
        hanging[0] = False
        if how is signal.SIGSTOP:
            child.send_signal(signal.SIGCONT)  # the zombie wakes, and harms nothing
            assert child.wait(60) == 0
            assert_whole(fetched(level("later"), [item], tmp_path / "later"), origin_server)
        assert watching.ledger.fills([key])[key].holder == "successor"
    finally:
        child.kill()
        child.wait()


def test_a_filler_that_is_slow_but_alive_keeps_its_object(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    (item, *_) = items
    origin_server.times(1, lambda exchange: bool(time.sleep(4)))
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(fetched, level("slow", takeover_seconds=2.5), [item], tmp_path / "slow")
        time.sleep(0.5)
        assert_whole(fetched(level("waiting", takeover_seconds=2.5), [item], tmp_path / "waiting"), origin_server)
        assert_whole(slow.result(), origin_server)
    assert origin_bytes(origin_server) == item.size_bytes


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_a_content_that_is_gone_or_damaged_in_the_level_is_fetched_again(
    damage: str, level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin,
    tmp_path: Path, s3_store: S3Store,
) -> None:  # fmt: skip
    first = level("first")
    got = fetched(first, items, tmp_path / "first")
    blob = first.records.blob(got[0].digest)
    if damage == "gone":
        s3_store.client.delete_object(Bucket=s3_store.bucket, Key=blob)
    else:
        s3_store.client.put_object(Bucket=s3_store.bucket, Key=blob, Body=os.urandom(got[0].size_bytes))
    assert_whole(fetched(level("second"), items, tmp_path / "second"), origin_server)
    assert_whole(fetched(level("third"), items, tmp_path / "third"), origin_server)
    assert origin_bytes(origin_server) == sum(item.size_bytes for item in items) + items[0].size_bytes


def test_a_level_that_is_down_does_not_keep_a_start_from_its_data(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.circuit_breaker.PATIENCE_SECONDS", 0.5)
    down = level("first")
    down.records.bucket.credentials = type(down.records.bucket.credentials)(
        endpoint_url="http://127.0.0.1:9", access_key_id="x", secret_access_key="y"
    )
    assert_whole(fetched(down, items, tmp_path), origin_server)
    assert "the cluster level is left out" in capfd.readouterr().err


def test_the_level_evicts_what_was_used_longest_ago_before_it_admits_more(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    marks = Watermarks(limit_bytes=7 * MIB, high=0.95, low=0.9, idle_seconds=0.0)
    one, two, three = items
    node = level("node", watermarks=marks)
    fetched(node, [one], tmp_path / "a")
    fetched(node, [two], tmp_path / "b")
    fetched(level("reader"), [one], tmp_path / "c")  # used again: two is older now
    assert_whole(fetched(node, [three], tmp_path / "d"), origin_server)
    held = {record.uri.rpartition("/")[2] for record in node.records.all().values()}
    assert held == {"one", "three"}
    assert sum(blob.size for blob in node.records.blobs()) <= marks.limit_bytes


def test_a_start_does_not_wait_for_the_upload_and_what_it_uploads_may_be_gone_by_then(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    filling = level("first")
    may_upload = threading.Event()
    put = Bucket.put

    def late(bucket: Bucket, key: str, body: bytes | Path, *, at: str) -> str:
        assert may_upload.wait(60)
        return put(bucket, key, body, at=at)

    monkeypatch.setattr(Bucket, "put", late)
    got = fetch(items, origin=Through(filling, WebOrigin()), staging=tmp_path / "first", settings=QUICK)
    assert_whole(got, origin_server)
    assert not filling.records.blobs(), "the fetch is over before anything was uploaded"
    for one in got:
        one.path.unlink()
    may_upload.set()
    filling.behind.settle()
    assert {blob.key.rpartition("/")[2] for blob in filling.records.blobs()} == {one.digest for one in got}
    before = origin_bytes(origin_server)
    assert_whole(fetched(level("second"), items, tmp_path / "second"), origin_server)
    assert origin_bytes(origin_server) == before


def test_a_pod_without_a_ledger_takes_what_the_cluster_has_and_adds_nothing(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It used to make a ledger of its own, in which it agreed with nobody."""
    first = level("agent")
    fetched(first, items[:1], tmp_path / "agent")
    before, rows = first.records.all(), first.ledger.fills()
    pod = level("pod", ledger=None)
    got = fetched(pod, items, tmp_path / "pod")
    assert_whole(got, origin_server)
    assert [one.source for one in got] == ["cluster", "origin", "origin"]
    assert_whole(fetched(pod, items, tmp_path / "again"), origin_server)
    assert (first.records.all(), first.ledger.fills()) == (before, rows)
    said = capfd.readouterr().err
    assert said.count("no ledger is known here (DSEC_LEDGER_URL)") == 1, said


def test_an_upload_that_fails_fails_for_itself(
    level: Level, items: tuple[RemoteObject, ...], origin_server: MisbehavingOrigin, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    filling = level("first")

    def refuse(*_: object, **__: object) -> str:
        raise ObjectStoreError("s3://cluster: the store is full")

    monkeypatch.setattr(Bucket, "put", refuse)
    assert_whole(fetched(filling, items, tmp_path / "first"), origin_server)
    assert "the cluster's store is not filled: s3://cluster: the store is full" in capfd.readouterr().err
    assert all(row.ended for row in filling.ledger.fills().values()), "nobody waits for this node"
