"""Everything that an origin can do wrong ends in the right retry or in one clear error, with nothing half-published."""

import base64
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from dsec_blocks.cache.errors import (
    CacheError,
    ContentMismatch,
    OriginChanged,
    OriginError,
    OriginRefused,
    OriginUnreachable,
    TransferCancelled,
)
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.cache.transfer import Fetched, TransferSettings, fetch
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin

MIB = 2**20
QUICK = TransferSettings(patience_seconds=20.0)
IMPATIENT = TransferSettings(patience_seconds=0.5)


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(24 * MIB + 321)


@pytest.fixture
def web(origin_server: MisbehavingOrigin, content: bytes) -> WebOrigin:
    origin_server.files["model.bin"] = content
    return WebOrigin(connections=Connections(stall_seconds=5.0))


def listed(server: MisbehavingOrigin, web: WebOrigin) -> tuple[RemoteObject, ...]:
    return web.list(f"{server.url}/model.bin")


def assert_whole(got: Fetched, content: bytes) -> None:
    assert got.path.read_bytes() == content
    assert got.digest == blake3(content).hexdigest()


def short_body(exchange: Exchange) -> bool:
    start, end = exchange.asked
    exchange.begin(206, start, end)
    exchange.wfile.write(exchange.content[start : start + (end - start) // 2])
    exchange.close_connection = True
    return True


def busy(exchange: Exchange) -> bool:
    exchange.say(503, Retry_After="0")
    return True


def hang(exchange: Exchange) -> bool:
    time.sleep(1.0)
    exchange.close_connection = True
    return True


def hang_up(exchange: Exchange) -> bool:
    exchange.close_connection = True
    exchange.connection.close()
    return True


def another_range(exchange: Exchange) -> bool:
    start, end = exchange.asked
    exchange.begin(206, start + 1, end + 1 if end < len(exchange.content) else end)
    exchange.wfile.write(exchange.content[start + 1 : end + 1])
    exchange.close_connection = True
    return True


def error_page_as_content(exchange: Exchange) -> bool:
    exchange.say(200)
    return True


@pytest.mark.parametrize("trick", [short_body, busy, hang, hang_up, another_range])
def test_what_passes_is_tried_again_and_the_file_is_whole(
    trick, origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.times(3, trick)
    if trick is hang:
        web = WebOrigin(connections=Connections(stall_seconds=0.5))
    assert_whole(fetch(items, origin=web, staging=tmp_path, settings=QUICK)[0], content)


def test_a_short_body_is_continued_where_it_ended(
    origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.times(2, short_body)
    got = fetch(items, origin=web, staging=tmp_path, settings=QUICK)[0]
    assert_whole(got, content)
    assert got.fetched_bytes == len(content)  # not a byte twice


@pytest.mark.parametrize("trick", [busy, hang, hang_up, another_range])
def test_what_does_not_pass_ends_in_one_line_that_names_the_object(
    trick, origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.tricks.append(trick)
    web = WebOrigin(connections=Connections(stall_seconds=0.5))
    with pytest.raises(OriginUnreachable, match=r"model\.bin: the origin does not deliver .* nothing was published"):
        fetch(items, origin=web, staging=tmp_path, settings=IMPATIENT)


def test_a_body_that_is_always_short_by_all_but_a_few_bytes_is_given_up(
    origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    def trickle(exchange: Exchange) -> bool:
        start, end = exchange.asked
        exchange.begin(206, start, end)
        exchange.wfile.write(exchange.content[start : start + 10])
        exchange.close_connection = True
        return True

    items = listed(origin_server, web)
    origin_server.tricks.append(trickle)
    with pytest.raises(OriginUnreachable):
        fetch(items, origin=web, staging=tmp_path, settings=TransferSettings(patience_seconds=60.0))


def test_a_dead_endpoint_is_one_line(web: WebOrigin, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    item = RemoteObject(uri=f"http://127.0.0.1:{port}/x", path="x", size_bytes=10, version=None)
    with pytest.raises(OriginUnreachable, match=f"127.0.0.1:{port}"):
        fetch([item], origin=web, staging=tmp_path, settings=IMPATIENT)


def test_an_object_overwritten_during_the_fetch_is_never_mixed(
    origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)

    def overwrite(exchange: Exchange) -> bool:
        origin_server.files["model.bin"] = os.urandom(len(exchange.content))
        return False

    origin_server.times(1, overwrite)
    with pytest.raises(OriginChanged, match=r"model\.bin was overwritten"):
        fetch(items, origin=web, staging=tmp_path, settings=QUICK)


def test_a_server_that_ignores_if_match_is_caught_by_its_etag(
    origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)

    def other_version(exchange: Exchange) -> bool:
        start, end = exchange.asked
        exchange.begin(206, start, end, etag='"another"')
        exchange.wfile.write(bytes(end - start))
        return True

    origin_server.tricks.append(other_version)
    with pytest.raises(OriginChanged, match="another ETag"):
        fetch(items, origin=web, staging=tmp_path, settings=QUICK)


def test_a_file_removed_during_the_fetch_is_one_line(
    origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.tricks.append(lambda exchange: bool(exchange.say(404)) or True)
    with pytest.raises(OriginChanged, match="was removed"):
        fetch(items, origin=web, staging=tmp_path, settings=QUICK)


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_are_refused_are_one_line_and_not_tried_again(
    status: int, origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.tricks.append(lambda exchange: bool(exchange.say(status)) or True)
    with pytest.raises(OriginRefused, match=f"HTTP {status}"):
        fetch(items, origin=web, staging=tmp_path, settings=TransferSettings(connections=1))
    assert len(origin_server.asked["model.bin"]) == 1


def test_a_server_that_answers_200_to_a_range_is_read_as_one_stream(
    origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)

    def whole(exchange: Exchange) -> bool:
        exchange.begin(200, 0, len(exchange.content))
        exchange.wfile.write(exchange.content)
        return True

    origin_server.tricks.append(whole)
    assert_whole(fetch(items, origin=web, staging=tmp_path, settings=QUICK)[0], content)


def test_a_stream_that_breaks_begins_again(
    origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    breaks = [2]

    def whole(exchange: Exchange) -> bool:
        exchange.begin(200, 0, len(exchange.content))
        is_whole_asked = exchange.asked == (0, len(exchange.content))
        if is_whole_asked and breaks[0]:
            breaks[0] -= 1
            exchange.wfile.write(exchange.content[: 5 * MIB])
            exchange.close_connection = True
            return True
        exchange.wfile.write(exchange.content)
        return True

    origin_server.tricks.append(whole)
    assert_whole(fetch(items, origin=web, staging=tmp_path, settings=QUICK)[0], content)
    assert breaks == [0]


def test_an_error_page_sent_as_200_never_becomes_the_file(
    origin_server: MisbehavingOrigin, web: WebOrigin, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    origin_server.tricks.append(error_page_as_content)
    with pytest.raises(OriginError):
        fetch(items, origin=web, staging=tmp_path, settings=IMPATIENT)


def test_right_size_and_wrong_content_is_fetched_again_and_then_refused(
    origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    promised = [
        RemoteObject(
            uri=item.uri, path=item.path, size_bytes=item.size_bytes, version=item.version,
            digest=f"blake3:{blake3(content).hexdigest()}",
        )
        for item in listed(origin_server, web)
    ]  # fmt: skip

    def corrupt(exchange: Exchange) -> bool:
        start, end = exchange.asked
        exchange.begin(206, start, end)
        exchange.wfile.write(bytes(end - start))
        return True

    origin_server.times(1, corrupt)
    got = fetch(promised, origin=web, staging=tmp_path / "once", settings=QUICK)[0]
    assert_whole(got, content)
    assert got.verified == "manifest"
    origin_server.tricks.append(corrupt)
    with pytest.raises(ContentMismatch, match=r"model\.bin arrived whole twice"):
        fetch(promised, origin=web, staging=tmp_path / "always", settings=QUICK)
    assert not list((tmp_path / "always").glob("*.part"))


def test_a_cancelled_fetch_stops_soon_and_the_next_goes_on(
    origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    arrived = [0]

    def count(amount: int) -> None:
        arrived[0] += amount

    slow = TransferSettings(bandwidth_bytes_per_second=40 * MIB)
    with pytest.raises(TransferCancelled):
        fetch(
            items, origin=web, staging=tmp_path, settings=slow, progress=count, cancelled=lambda: arrived[0] > 12 * MIB
        )
    got = fetch(items, origin=web, staging=tmp_path, settings=QUICK)[0]
    assert_whole(got, content)
    assert got.fetched_bytes < len(content)


@pytest.mark.parametrize("connections", [None, 16])
def test_a_bandwidth_cap_is_kept(
    connections: int | None, origin_server: MisbehavingOrigin, web: WebOrigin, content: bytes, tmp_path: Path
) -> None:
    items = listed(origin_server, web)
    capped = TransferSettings(connections=connections, bandwidth_bytes_per_second=24 * MIB)
    started = time.monotonic()
    fetch(items, origin=web, staging=tmp_path, settings=capped)
    assert time.monotonic() - started > 0.9


def test_two_objects_with_one_path_are_refused(web: WebOrigin, tmp_path: Path) -> None:
    item = RemoteObject(uri="http://127.0.0.1:9/x", path="x", size_bytes=1, version=None)
    with pytest.raises(CacheError, match="listed twice"):
        fetch([item, item], origin=web, staging=tmp_path)


class StoreWithChecksum(WebOrigin):
    """A store that keeps CRC64NVME of whole objects."""

    checksum: str | None = None

    def stored_checksum(self, item: RemoteObject) -> str | None:
        return self.checksum


@pytest.mark.parametrize("is_right", [True, False])
def test_the_stores_own_checksum_is_compared_with_what_came(
    is_right: bool, origin_server: MisbehavingOrigin, content: bytes, tmp_path: Path
) -> None:
    """C25: ranged answers carry no checksum, so the ranges' own must make up the whole object's."""
    checksums = pytest.importorskip("awscrt.checksums")
    origin_server.files["model.bin"] = content
    store = StoreWithChecksum()
    kept = checksums.crc64nvme(content if is_right else content[::-1]).to_bytes(8, "big")
    store.checksum = f"crc64nvme:{base64.b64encode(kept).decode()}"
    items = [replace(item, has_checksum=True) for item in listed(origin_server, store)]
    if is_right:
        assert fetch(items, origin=store, staging=tmp_path, settings=QUICK)[0].verified == "store"
    else:
        with pytest.raises(ContentMismatch, match="promised was crc64nvme"):
            fetch(items, origin=store, staging=tmp_path, settings=QUICK)
