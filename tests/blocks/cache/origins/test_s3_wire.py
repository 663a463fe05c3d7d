"""What goes over the wire to an S3-compatible store, and what its answers are taken for."""

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import ContentMismatch
from dsec_blocks.cache.origins import Origin, OriginCredentials, origin_for
from dsec_blocks.cache.transfer import Fetched, TransferSettings, fetch
from dsec_blocks.gateways import objects
from dsec_blocks.gateways.objects import Bucket, Credentials
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin
from tests.fixtures.scripted_s3 import BUCKET, ScriptedS3

QUICK = TransferSettings(patience_seconds=5.0)
SECONDS = 60.0
URI = f"s3://{BUCKET}/m"


@pytest.fixture
def store(origin_server: MisbehavingOrigin) -> ScriptedS3:
    store = ScriptedS3(origin_server)
    store.objects["m/w.bin"] = os.urandom(3_000_000)
    return store


def opened(store: ScriptedS3) -> Origin:
    keys = OriginCredentials(endpoint_url=store.endpoint_url, access_key_id="key", secret_access_key="secret")
    return origin_for(URI, keys)


def brought(store: ScriptedS3, staging: Path) -> Fetched:
    origin = opened(store)
    (got,) = fetch(origin.list(URI), origin=origin, staging=staging, settings=QUICK)
    return got


class Checksums:
    """A store that keeps CRC64NVME and says of what kind it is."""

    def __init__(self, store: ScriptedS3, *, of: bytes, kind: str) -> None:
        crc64nvme = pytest.importorskip("awscrt.checksums").crc64nvme
        store.entry = f"<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>{kind}</ChecksumType>"
        kept = base64.b64encode(crc64nvme(of).to_bytes(8, "big")).decode()
        store.headers = {"x-amz-checksum-crc64nvme": kept, "x-amz-checksum-type": kind}


def test_a_checksum_that_the_store_keeps_is_compared(store: ScriptedS3, tmp_path: Path) -> None:
    """C25: the answers to ranges carry none, so it is the whole object's that is asked for and computed."""
    Checksums(store, of=store.objects["m/w.bin"], kind="FULL_OBJECT")
    assert brought(store, tmp_path).verified == "store"


def test_content_that_is_not_of_the_checksum_that_the_store_keeps_is_refused(store: ScriptedS3, tmp_path: Path) -> None:
    Checksums(store, of=b"something else", kind="FULL_OBJECT")
    with pytest.raises(ContentMismatch, match="promised was crc64nvme:"):
        brought(store, tmp_path)


@pytest.mark.parametrize("is_listed_as_composite", [True, False])
def test_a_checksum_of_parts_is_not_taken_for_one_of_the_whole(
    store: ScriptedS3, is_listed_as_composite: bool, tmp_path: Path
) -> None:
    """C25: COMPOSITE. A listing that does not say so (as older stores') is corrected by the object's own answer."""
    Checksums(store, of=b"the checksums of the parts", kind="COMPOSITE")
    if not is_listed_as_composite:
        store.entry = "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
    assert brought(store, tmp_path).verified == "length"


class Puts:
    """What is stored, as it came over the wire."""

    def __init__(self, store: ScriptedS3) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self._ports = store.ports
        handler = store.server._server.RequestHandlerClass
        handler.do_PUT = handler.do_POST = lambda exchange: self.answer(exchange)  # type: ignore[attr-defined]

    def answer(self, exchange: Exchange) -> None:
        body = exchange.rfile.read(int(exchange.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in exchange.headers.items()}
        self._ports.append(exchange.client_address[1])
        self.requests.append((f"{exchange.command} {exchange.path}", headers, body))
        says = {"?uploads": "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"}
        wrote = "<CompleteMultipartUploadResult><ETag>&quot;e&quot;</ETag></CompleteMultipartUploadResult>"
        text = next((text for end, text in says.items() if exchange.path.endswith(end)), wrote)
        exchange.say(200, text.encode(), ETag='"e"')


@pytest.fixture
def puts(store: ScriptedS3) -> Puts:
    return Puts(store)


@pytest.fixture
def bucket(store: ScriptedS3) -> Bucket:
    keys = Credentials(endpoint_url=store.endpoint_url, access_key_id="key", secret_access_key="secret")
    return Bucket(BUCKET, keys)


def test_an_upload_to_a_custom_endpoint_is_the_bytes_and_no_checksum_headers(
    bucket: Bucket, puts: Puts, tmp_path: Path
) -> None:
    """C27: stores that do not know the newer headers refuse them, or keep the trailers *inside* the object."""
    (tmp_path / "file").write_bytes(b"content")
    bucket.put("k", b"content", at="a.test")
    bucket.put("k", tmp_path / "file", at="a.test")
    assert [body for _, _, body in puts.requests] == [b"content"] * 2
    for _, headers, _ in puts.requests:
        assert not [
            name for name in headers if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trail"))
        ]
        assert "aws-chunked" not in headers.get("content-encoding", "")


def test_a_read_from_a_custom_endpoint_asks_for_no_checksum(store: ScriptedS3, bucket: Bucket) -> None:
    """C27, the other way."""
    asked: list[dict[str, str]] = []
    answer = store.answer

    def seen(exchange: Exchange, *, with_body: bool) -> None:
        asked.append({name.lower(): value for name, value in exchange.headers.items()})
        answer(exchange, with_body=with_body)

    store.answer = seen  # type: ignore[method-assign]
    assert bucket.get("m/w.bin")[0] == store.objects["m/w.bin"]
    assert asked and not [headers for headers in asked if "x-amz-checksum-mode" in headers]


def test_a_condition_goes_with_a_small_object_and_never_with_the_end_of_a_multipart_upload(
    bucket: Bucket, puts: Puts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C30: emulators ignore the condition on CompleteMultipartUpload, and two writers both win."""
    monkeypatch.setattr(objects, "PART_BYTES", 1000)
    bucket.put_if("commit", b"c" * 5000, etag=None, at="a.test")
    ((line, headers, body),) = puts.requests
    assert line == f"PUT /{BUCKET}/commit" and headers["if-none-match"] == "*" and len(body) == 5000
    puts.requests.clear()
    (tmp_path / "file").write_bytes(b"f" * 5000)
    bucket.put("data", tmp_path / "file", at="a.test")
    assert sorted({line.split("?")[0] for line, _, _ in puts.requests}) == [
        f"POST /{BUCKET}/data",
        f"PUT /{BUCKET}/data",
    ]
    assert len(puts.requests) == 7, "begun, five parts, ended"
    assert not [headers for _, headers, _ in puts.requests if "if-none-match" in headers or "if-match" in headers]


@pytest.fixture
def child() -> Iterator[list[int]]:
    """Children that must not outlive the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_child_forked_after_the_client_was_used_fetches_by_itself(
    store: ScriptedS3, bucket: Bucket, puts: Puts, child: list[int], tmp_path: Path
) -> None:
    """C28: connections and threads do not survive a fork; an upload of the child would hang without a word."""
    origin = opened(store)
    items = origin.list(URI)
    fetch(items, origin=origin, staging=tmp_path / "parents", settings=QUICK)
    bucket.put("k", b"parent", at="a.test")
    parents = set(store.ports)
    store.ports.clear()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            bucket.put("k", b"child", at="a.test")
            (got,) = fetch(origin.list(URI), origin=origin, staging=tmp_path / "childs", settings=QUICK)
            code = 0 if got.path.read_bytes() == store.objects["m/w.bin"] else 2
        finally:
            os._exit(code)
    child.append(pid)
    until = time.monotonic() + SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < until, "it hangs"
        time.sleep(0.02)
    child.remove(pid)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert [body for _, _, body in puts.requests] == [b"parent", b"child"]
    assert len(set(store.ports)) >= 2 and parents.isdisjoint(store.ports), "a store's client and ranges of its own"
    (again,) = fetch(items, origin=origin, staging=tmp_path / "again", settings=QUICK)
    assert again.size_bytes == len(store.objects["m/w.bin"]), "the parent's connections are its own still"


def test_connections_that_begin_together_make_one_client(store: ScriptedS3, tmp_path: Path) -> None:
    """A fetch from the cluster's store begins without a listing: each connection made a client of its own."""
    for number in range(16):
        store.objects[f"m/{number}.bin"] = os.urandom(1000)
    items = opened(store).list(URI)
    objects._client.cache_clear()
    fetch(items, origin=opened(store), staging=tmp_path, settings=QUICK)
    assert objects._client.cache_info().misses == 1
