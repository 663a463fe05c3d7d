"""A real S3 store as an origin: listing, versions, checksums, and refusals in one line."""

import os
from pathlib import Path

import pytest
from blake3 import blake3

from dsec_blocks.cache.errors import BundleMissing, OriginChanged, OriginRefused, OriginUnreachable, UnknownOrigin
from dsec_blocks.cache.origins import Origin, OriginCredentials, origin_for
from dsec_blocks.cache.origins.objects import same_listing
from dsec_blocks.cache.transfer import TransferSettings, fetch
from tests.fixtures.s3 import S3Store

pytestmark = pytest.mark.slow
MIB = 2**20
QUICK = TransferSettings(patience_seconds=5.0)


def opened(store: S3Store, **changes: str) -> Origin:
    fields = {
        "endpoint_url": store.endpoint_url,
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
        **changes,
    }
    return origin_for(f"s3://{store.bucket}/", OriginCredentials(**fields))


@pytest.fixture
def bundle(s3_store: S3Store) -> dict[str, bytes]:
    files = {
        "config.json": b"{}",
        "empty": b"",
        "shards/model 1#?%+ü.safetensors": os.urandom(20 * MIB + 5),
        "shards/2.safetensors": os.urandom(9 * MIB),
    }
    for path, content in files.items():
        s3_store.client.put_object(Bucket=s3_store.bucket, Key=f"models/tiny/{path}", Body=content)
    return files


def test_a_bundle_is_fetched_whole_and_its_names_survive(
    s3_store: S3Store, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    origin = opened(s3_store)
    items = origin.list(f"s3://{s3_store.bucket}/models/tiny")
    got = fetch(items, origin=origin, staging=tmp_path, settings=QUICK)
    assert {one.item.path: one.digest for one in got} == {p: blake3(c).hexdigest() for p, c in bundle.items()}
    assert {one.path.stat().st_size for one in got} == {len(content) for content in bundle.values()}


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(s3_store: S3Store, bundle: dict[str, bytes]) -> None:
    s3_store.client.put_object(Bucket=s3_store.bucket, Key="models/tiny-2/other", Body=b"x")
    items = opened(s3_store).list(f"s3://{s3_store.bucket}/models/tiny")
    assert [item.path for item in items] == sorted(bundle)


def test_patterns_choose_and_a_single_key_is_a_bundle_of_one(s3_store: S3Store, bundle: dict[str, bytes]) -> None:
    origin, uri = opened(s3_store), f"s3://{s3_store.bucket}/models/tiny"
    assert [item.path for item in origin.list(uri, include=["*.json"])] == ["config.json"]
    assert len(origin.list(uri, exclude=["shards/*"])) == 2
    assert [item.path for item in origin.list(f"{uri}/shards/2.safetensors")] == ["2.safetensors"]
    with pytest.raises(BundleMissing, match="patterns leave none"):
        origin.list(uri, include=["*.bin"])


def test_what_is_not_there_is_one_line(s3_store: S3Store) -> None:
    with pytest.raises(BundleMissing, match="there is nothing at"):
        opened(s3_store).list(f"s3://{s3_store.bucket}/nothing/here")


def test_a_wrong_key_is_one_line(s3_store: S3Store, bundle: dict[str, bytes], tmp_path: Path) -> None:
    items = opened(s3_store).list(f"s3://{s3_store.bucket}/models/tiny")
    stranger = opened(s3_store, secret_access_key="wrong")
    with pytest.raises(OriginRefused, match="refuses these credentials"):
        stranger.list(f"s3://{s3_store.bucket}/models/tiny")
    with pytest.raises(OriginRefused, match="HTTP 403"):
        fetch(items, origin=stranger, staging=tmp_path, settings=QUICK)


def test_a_dead_endpoint_is_one_line(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec_blocks.gateways.objects.PATIENCE_SECONDS", 1.0)
    with pytest.raises(OriginUnreachable, match="does not answer"):
        opened(s3_store, endpoint_url="http://127.0.0.1:9").list("s3://some-bucket/x")


def test_an_object_overwritten_after_the_listing_is_refused(
    s3_store: S3Store, bundle: dict[str, bytes], tmp_path: Path
) -> None:
    origin, uri = opened(s3_store), f"s3://{s3_store.bucket}/models/tiny"
    before = origin.list(uri)
    s3_store.client.put_object(Bucket=s3_store.bucket, Key="models/tiny/shards/2.safetensors", Body=os.urandom(9 * MIB))
    with pytest.raises(OriginChanged, match=r"2\.safetensors was overwritten"):
        fetch(before, origin=origin, staging=tmp_path, settings=QUICK)
    with pytest.raises(OriginChanged, match=r"2\.safetensors was overwritten"):
        same_listing(uri, before, origin.list(uri))


def test_a_checksum_that_this_store_keeps_is_compared(s3_store: S3Store, tmp_path: Path) -> None:
    """C25; what is done with each kind of checksum is told in test_s3_wire."""
    pytest.importorskip("awscrt")
    content = os.urandom(10 * MIB)
    s3_store.client.put_object(Bucket=s3_store.bucket, Key="sum/x", Body=content, ChecksumAlgorithm="CRC64NVME")
    origin = opened(s3_store)
    (item,) = origin.list(f"s3://{s3_store.bucket}/sum")
    if not item.has_checksum:
        pytest.skip("this store lists no CRC64NVME of whole objects")
    (got,) = fetch([item], origin=origin, staging=tmp_path, settings=QUICK)
    assert got.verified == "store"


def test_the_etag_of_a_multipart_upload_is_a_version_and_no_hash(s3_store: S3Store, tmp_path: Path) -> None:
    """C26: it is no MD5 of the content, and whoever compares it as one refuses every large object."""
    content, client, where = os.urandom(12 * MIB), s3_store.client, {"Bucket": s3_store.bucket, "Key": "large/w.bin"}
    upload = {**where, "UploadId": client.create_multipart_upload(**where)["UploadId"]}
    parts = []
    for number, half in enumerate((content[: 6 * MIB], content[6 * MIB :]), start=1):
        answer = client.upload_part(**upload, PartNumber=number, Body=half)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    origin, uri = opened(s3_store), f"s3://{s3_store.bucket}/large"
    (item,) = origin.list(uri)
    assert (item.version or "").endswith('-2"')
    (got,) = fetch([item], origin=origin, staging=tmp_path, settings=QUICK)
    assert got.digest == blake3(content).hexdigest()
    same_listing(uri, [item], origin.list(uri))


def test_an_address_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(UnknownOrigin, match="write s3://bucket/prefix"):
        origin_for("s3:///x")
