"""The circuit breaker before a cluster's store: one that does not answer is waited for once, and data comes from its
origin meanwhile.
"""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from dsec_blocks.cache import CacheSettings, open_cache
from dsec_blocks.cache.cluster_level import ClusterAddress, ClusterLevel, Through
from dsec_blocks.cache.cluster_level.circuit_breaker import (
    HALF_OPEN_SECONDS,
    MARK,
    OPEN_SECONDS,
    CircuitBreaker,
    is_no_answer,
)
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.transfer import Fetched, fetch
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Bucket, Credentials, ObjectStoreError
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import DsecError

FILES = {"a.bin": b"a" * 1000, "b.bin": b"b" * 2000, "c.bin": b"c" * 3000}
Store = tuple[socket.socket, str]


class Shifted(SystemClock):
    """The wall clock, some seconds from now."""

    ahead_seconds = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_seconds


@pytest.fixture(autouse=True)
def _one_question_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it is waited for is not what is looked at here, but how often."""
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.circuit_breaker.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.circuit_breaker.HALF_OPEN_PATIENCE_SECONDS", 0.0)


@pytest.fixture
def address() -> Iterator[Store]:
    """An address at which nobody listens: connections are refused until somebody does."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.setblocking(False)
        yield place, f"http://127.0.0.1:{place.getsockname()[1]}"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "origin").mkdir(exist_ok=True)
        (tmp_path / "origin" / name).write_bytes(content)
    return tmp_path / "origin"


@pytest.fixture
def node(tmp_path: Path, address: Store) -> Callable[..., ClusterLevel]:
    """The level as one more process of the node has it."""
    (tmp_path / "cache").mkdir()

    def make(clock: SystemClock | None = None) -> ClusterLevel:
        clock = clock or SystemClock()
        keys = Credentials(endpoint_url=address[1], access_key_id="key", secret_access_key="secret")
        ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db", clock=clock)
        mark = tmp_path / "cache" / MARK
        return ClusterLevel(Bucket("c", keys), ledger=ledger, clock=clock, holder="n", breaker_mark=mark)

    return make


def started(level: ClusterLevel, origin: Path, staging: Path) -> list[Fetched]:
    through = Through(level, PathOrigin())
    got = fetch(through.list(str(origin)), origin=through, staging=staging)
    level.behind.settle()
    assert {one.item.path: one.path.read_bytes() for one in got} == FILES
    return got


def questions(place: socket.socket) -> int:
    """How often somebody connected since the last look."""
    count = 0
    while True:
        try:
            place.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_a_start_waits_once_for_a_store_that_accepts_and_says_nothing(
    node: Callable[..., ClusterLevel],
    address: Store,
    origin: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It was waited for to keep the listing, and again to look for the objects: a cold start took a minute."""
    address[0].listen(64)
    started(node(), origin, tmp_path / "one")
    assert questions(address[0]) == 1
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith(f"cache: the cluster level is left out: s3://c at {address[1]} "), said
    assert "does not answer; the origin is asked instead, and the store again in 60 s" in said[0]


def test_a_start_goes_on_without_a_store_whose_packets_are_dropped(
    node: Callable[..., ClusterLevel],
    address: Store,
    origin: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    address[0].listen(0)
    host = address[0].getsockname()
    waiting = [socket.socket() for _ in range(4)]  # more than the backlog takes: the kernel drops what comes then
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(host)
    started(node(), origin, tmp_path / "one")
    assert capfd.readouterr().err.count("\n") == 1
    for one in waiting:
        one.close()


def test_other_processes_of_the_node_do_not_ask_a_store_that_refused_a_moment_ago(
    node: Callable[..., ClusterLevel],
    address: Store,
    origin: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    started(node(), origin, tmp_path / "one")
    assert capfd.readouterr().err.count("\n") == 1
    address[0].listen(64)
    started(node(), origin, tmp_path / "two")
    assert questions(address[0]) == 0
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "the cluster level is left out" in said[0] and "did not answer" in said[0], said


def test_the_store_is_asked_again_after_a_while(
    node: Callable[..., ClusterLevel], address: Store, origin: Path, tmp_path: Path
) -> None:
    started(node(), origin, tmp_path / "one")
    address[0].listen(64)
    later = Shifted()
    later.ahead_seconds = OPEN_SECONDS + 1
    started(node(later), origin, tmp_path / "two")
    assert questions(address[0]) == 1
    started(node(later), origin, tmp_path / "three")
    assert questions(address[0]) == 0, "it did not answer again"


def test_a_store_that_did_not_answer_is_asked_briefly_and_one_that_answers_for_long_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.circuit_breaker.PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.circuit_breaker.HALF_OPEN_PATIENCE_SECONDS", 2.0)
    clock = Shifted()
    known = CircuitBreaker("s3://c", mark=tmp_path / MARK, clock=clock, say=lambda text: None)
    assert (known.is_open(), known.patience_seconds()) == (False, 10.0)
    with pytest.raises(ObjectStoreError), known.calling():
        raise ObjectStoreError("away") from EndpointConnectionError(endpoint_url="http://x")
    assert known.is_open()
    clock.ahead_seconds = OPEN_SECONDS + 1
    assert (known.is_open(), known.patience_seconds()) == (False, 2.0)
    clock.ahead_seconds = HALF_OPEN_SECONDS + 1
    assert (known.is_open(), known.patience_seconds()) == (False, 10.0)
    clock.ahead_seconds = -3600.0
    assert (known.is_open(), known.patience_seconds()) == (False, 10.0), "a clock that was set back"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"failed_at": "x", "store": "s3://c"}', b'{"failed_at": 1e18}'])
def test_a_mark_that_is_none_leaves_the_breaker_closed(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MARK).write_bytes(content)
    known = CircuitBreaker("s3://c", mark=tmp_path / MARK, clock=SystemClock(), say=lambda text: None)
    assert not known.is_open()


def test_the_failure_of_another_store_says_nothing_about_this_one(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text(json.dumps({"store": "s3://old", "failed_at": SystemClock().now()}))
    known = CircuitBreaker("s3://c", mark=tmp_path / MARK, clock=SystemClock(), say=lambda text: None)
    assert not known.is_open()


def test_a_store_that_refuses_has_answered() -> None:
    assert not is_no_answer(ObjectStoreError("s3://c: the store is full"))


def test_a_process_that_ends_waits_once_for_a_store_that_died_before_the_uploads(
    node: Callable[..., ClusterLevel], address: Store, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tried each object for half a minute."""
    level = node()
    tried = []

    def die(bucket: Bucket, key: str, body: bytes | Path, *, at: str) -> str:
        tried.append(key)
        raise ObjectStoreError("away") from EndpointConnectionError(endpoint_url=address[1])

    monkeypatch.setattr(Bucket, "get", lambda bucket, key: (b"null", '"etag"'))
    monkeypatch.setattr(Bucket, "put", die)
    monkeypatch.setattr(level.records, "drop_unfinished", lambda **_: 0)
    monkeypatch.setattr("dsec_blocks.cache.cluster_level.records.Records.write_listing", lambda *_: None)
    through = Through(level, PathOrigin())
    fetch(through.list(str(origin)), origin=through, staging=tmp_path / "one")
    level.behind.settle()
    assert len(tried) == 1
    assert all(row.ended for row in level.fills.fills().values()), "nobody waits for this node"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_cache_remembers_it_in_its_directory(is_there: bool, address: Store, origin: Path, tmp_path: Path) -> None:
    cluster = ClusterAddress(
        url="s3://c", ledger_url=None, endpoint_url=address[1], access_key_id="key", secret_access_key="secret"
    )
    settings = CacheSettings(directory=tmp_path / "new")
    if is_there:  # a folder that somebody made for it: it must not be taken for one with other things in it
        settings.directory.mkdir()
    with open_cache(settings, cluster=cluster).acquire(str(origin)) as bundle:
        assert (bundle.path / "a.bin").read_bytes() == FILES["a.bin"]
    assert (tmp_path / "new" / MARK).is_file()
    address[0].listen(64)
    (origin / "d.bin").write_bytes(b"d")
    with open_cache(settings, cluster=cluster).acquire(str(origin), revalidate="always") as bundle:
        assert (bundle.path / "d.bin").read_bytes() == b"d"
    assert questions(address[0]) == 0


def test_while_the_origin_is_away_too_the_store_is_asked_all_the_same(
    node: Callable[..., ClusterLevel], address: Store, origin: Path, tmp_path: Path
) -> None:
    level = node()
    started(level, origin, tmp_path / "one")
    address[0].listen(64)
    origin.rename(tmp_path / "gone")
    with pytest.raises(DsecError):
        Through(level, PathOrigin()).list(str(origin))
    assert questions(address[0]) == 1
