"""An address that names a version is fetched once and never compared again; any other is."""

import shutil
from dataclasses import replace

import pytest

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import BundleMissing, UnknownOrigin
from dsec_blocks.cache.origins import OriginCredentials, origin_for
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.origins.s3 import located
from dsec_blocks.cache.store.refs import all_refs
from tests.blocks.cache.conftest import Place
from tests.fixtures.misbehaving import MisbehavingOrigin, origin_server
from tests.fixtures.s3 import S3Store
from tests.fixtures.scripted_s3 import ScriptedS3

__all__ = ["origin_server"]
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("uri", "is_pinned"),
    [
        (f"hf://o/n@{SHA}", True),
        (f"hf://o/n@{SHA}/folder/below", True),
        (f"hf://datasets/o/n@{SHA}/folder", True),
        ("hf://o/n", False),
        ("hf://o/n@main", False),
        (f"hf://o/n@{SHA[:12]}", False),  # a short one may become another's
        (f"hf://o/n@main/{SHA}", False),
        (f"hf://o/n@main/x@{SHA}", False),
        ("s3://b/key?versionId=3HL4kqtJlcpXroDTDmJ", True),
        ("s3://b/key", False),
        (f"s3://b/key@{SHA}", False),  # a name like any other
        ("s3://b/key/versionId=1", False),
        (f"https://host/x@{SHA}", False),
        ("https://host/x?versionId=1", False),  # nobody promises what that means there
        (f"/data/x@{SHA}", False),
    ],
)
def test_an_address_is_pinned_when_what_it_names_cannot_change(uri: str, is_pinned: bool) -> None:
    assert BundleAddress.of(uri).is_pinned is is_pinned


def test_a_pinned_address_is_never_compared_again(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    pinned = f"hf://o/n@{SHA}/folder"

    class Hub(PathOrigin):
        def list(self, asked, **patterns):
            return super().list(uri, **patterns)

    cache = replace(place.cache(revalidate="always"), origin_of=lambda _: Hub())
    for address in (pinned, "hf://o/n"):
        cache.acquire(address).release()
    shutil.rmtree(uri)
    place.clock.advance(10**7)
    with cache.acquire(pinned) as lease:
        assert lease.acquired.was_resident and not lease.acquired.stale
    with cache.acquire("hf://o/n") as lease:
        assert lease.acquired.stale, "it was asked for"
    assert {ref.uri for ref in all_refs(cache.store.layout).values()} == {pinned, "hf://o/n"}


def test_one_version_of_an_object_is_fetched_whatever_the_newest_is(
    place: Place, origin_server: MisbehavingOrigin
) -> None:
    store = ScriptedS3(origin_server)
    store.versions[("m/w.bin", "1")] = b"first"
    store.objects["m/w.bin"] = b"second"
    credentials = OriginCredentials(endpoint_url=store.endpoint_url, access_key_id="key", secret_access_key="secret")
    cache = place.cache(credentials=credentials)
    with cache.acquire("s3://models/m/w.bin?versionId=1") as lease:
        assert {path.name: path.read_bytes() for path in lease.path.iterdir()} == {"w.bin": b"first"}
    with cache.acquire("s3://models/m/w.bin") as lease:
        assert (lease.path / "w.bin").read_bytes() == b"second"
    with pytest.raises(BundleMissing, match="there is no such version"):
        cache.acquire("s3://models/m/w.bin?versionId=2")


@pytest.mark.slow
def test_one_version_of_an_object_in_a_real_store(place: Place, s3_store: S3Store) -> None:
    enabled = {"Status": "Enabled"}
    s3_store.client.put_bucket_versioning(Bucket=s3_store.bucket, VersioningConfiguration=enabled)
    put = [s3_store.client.put_object(Bucket=s3_store.bucket, Key="m/w", Body=body) for body in (b"first", b"second")]
    credentials = OriginCredentials(
        endpoint_url=s3_store.endpoint_url,
        access_key_id=s3_store.access_key_id,
        secret_access_key=s3_store.secret_access_key,
    )
    cache = place.cache(credentials=credentials)
    for answer, content in zip(put, (b"first", b"second"), strict=True):
        with cache.acquire(f"s3://{s3_store.bucket}/m/w?versionId={answer['VersionId']}") as lease:
            assert (lease.path / "w").read_bytes() == content
    with pytest.raises(BundleMissing, match="there is no such version"):
        cache.acquire(f"s3://{s3_store.bucket}/m/w?versionId=nonsense")


@pytest.mark.parametrize(
    "uri",
    ["s3://b/key?versionId=", "s3://b/?versionId=1", "s3://b/folder/?versionId=1", "s3://b/k?versionId=1&x=2", "s3://b/k?x=1"],
)  # fmt: skip
def test_an_address_that_names_no_single_version_is_refused(uri: str) -> None:
    with pytest.raises(UnknownOrigin):
        origin_for(uri)


def test_a_key_with_a_question_mark_is_written_with_its_code() -> None:
    assert located("s3://b/what%3FversionId=1") == ("b", "what?versionId=1", None)
    assert located("s3://b/a%20key?versionId=a%2Bb") == ("b", "a key", "a+b")
