"""A bundle that a manifest names: its objects come with their digests, and nothing else is taken for them."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import BadManifest, BundleMissing, CacheError, ContentMismatch, UnsafePath
from dsec_blocks.cache.origins import OriginCredentials, origin_for
from dsec_blocks.cache.store import check
from tests.blocks.cache.conftest import KB, Place
from tests.fixtures.misbehaving import MisbehavingOrigin, origin_server
from tests.fixtures.scripted_s3 import ScriptedS3

__all__ = ["origin_server"]
FILES = {"w.bin": b"w" * 20 * KB, "sub/a file#1.json": b"{}"}


def entry(path: str, content: bytes, **changes: Any) -> dict[str, Any]:
    return {"path": path, "size": len(content), "blake3": blake3(content).hexdigest(), **changes}


def manifest(files: dict[str, bytes]) -> bytes:
    return json.dumps({"schema": 1, "files": [entry(path, content) for path, content in files.items()]}).encode()


def put(place: Place, files: dict[str, bytes], **written: bytes) -> str:
    """A folder with `files` and a manifest of them; the address of the manifest."""
    folder = place.root / "origin" / "m"
    for path, content in {**files, **written, "manifest.json": manifest(files)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return f"manifest+file://{folder}/manifest.json"


def test_what_the_manifest_names_is_fetched_and_compared_with_it(place: Place) -> None:
    uri = put(place, FILES, **{"not-in-it.bin": b"x"})
    cache = place.cache()
    with cache.acquire(uri) as lease:
        found = {str(p.relative_to(lease.path)): p.read_bytes() for p in lease.path.rglob("*") if p.is_file()}
        assert found == FILES
        assert {file.path: file.digest for file in lease.manifest.files} == {
            path: blake3(content).hexdigest() for path, content in FILES.items()
        }
    with cache.acquire(uri, include=["*.json"]) as lease:
        assert lease.acquired.fetched_bytes == 0 and [file.path for file in lease.manifest.files] == [
            "sub/a file#1.json"
        ]
    assert check(cache.store) == []


def test_content_that_is_not_what_the_manifest_promises_is_refused_and_not_kept(place: Place) -> None:
    uri = put(place, FILES, **{"w.bin": b"W" * 20 * KB})
    cache = place.cache()
    with pytest.raises(ContentMismatch, match=r"w\.bin arrived whole twice and is not what was promised"):
        cache.acquire(uri)
    assert not list(cache.store.layout.views.iterdir())


def test_a_manifest_may_name_sha256(place: Place) -> None:
    uri = put(place, FILES)
    told = [{"path": "w.bin", "size": 20 * KB, "sha256": hashlib.sha256(FILES["w.bin"]).hexdigest()}]
    (place.root / "origin" / "m" / "manifest.json").write_text(json.dumps(told))
    with place.cache().acquire(uri) as lease:
        assert (lease.path / "w.bin").read_bytes() == FILES["w.bin"]


def test_a_newer_manifest_fetches_what_it_changed(place: Place) -> None:
    uri = put(place, FILES)
    cache = place.cache(revalidate="always")
    cache.acquire(uri).release()
    put(place, {**FILES, "sub/a file#1.json": b"[1]"})
    with cache.acquire(uri) as lease:
        assert lease.acquired.fetched_bytes == 3


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_manifest_names_objects_beside_it_wherever_it_lies(
    scheme: str, place: Place, origin_server: MisbehavingOrigin
) -> None:
    files = {"w.bin": FILES["w.bin"], "sub/c.json": b"{}"}
    objects = {f"models/m/{path}": content for path, content in {**files, "manifest.json": manifest(files)}.items()}
    if scheme == "http":
        origin_server.files.update(objects)
        uri, credentials = f"manifest+{origin_server.url}/models/m/manifest.json", OriginCredentials()
    else:
        store = ScriptedS3(origin_server, objects={key.removeprefix("models/"): raw for key, raw in objects.items()})
        uri = "manifest+s3://models/m/manifest.json"
        credentials = OriginCredentials(endpoint_url=store.endpoint_url, access_key_id="k", secret_access_key="s")
    with place.cache(credentials=credentials).acquire(uri) as lease:
        assert {str(p.relative_to(lease.path)): p.read_bytes() for p in lease.path.rglob("*") if p.is_file()} == files


def test_a_manifest_of_ones_own_is_no_key_to_what_others_have_fetched(place: Place) -> None:
    """Who only knows a digest has to get the content from where his own manifest says it is."""
    secret = b"s" * KB
    place.cache().acquire(place.put("secret", w_bin=secret)).release()
    uri = put(place, {"mine.bin": secret}, **{"mine.bin": b"x" * KB})
    with pytest.raises(ContentMismatch):
        replace(place.cache(), identity="a stranger").acquire(uri)


@pytest.mark.parametrize(
    ("text", "says", "error"),
    [
        ("not json", "it is not JSON", BadManifest),
        ("{}", "write {\"files\"", BadManifest),
        ('{"files": []}', "write {\"files\"", BadManifest),
        ('["w.bin"]', '"w.bin" has no path, or no size', BadManifest),
        ('[{"path": "w.bin", "blake3": "00"}]', "has no path, or no size", BadManifest),
        ('[{"path": "w.bin", "size": -1, "blake3": "00"}]', "has no path, or no size", BadManifest),
        ('[{"path": "w.bin", "size": true, "blake3": "00"}]', "has no path, or no size", BadManifest),
        ('[{"path": "w.bin", "size": 1}]', r"w\.bin has no digest; give blake3", BadManifest),
        ('[{"path": "w.bin", "size": 1, "blake3": "ABC"}]', r"w\.bin has no digest", BadManifest),
        (json.dumps([entry("../x", b"")]), r"'\.\./x' is not a path inside a bundle", UnsafePath),
        (json.dumps([entry("x", b""), entry("x", b"")]), "is in the bundle twice", UnsafePath),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_followed_is_one_line(
    place: Place, text: str, says: str, error: type[CacheError]
) -> None:
    uri = put(place, FILES)
    (place.root / "origin" / "m" / "manifest.json").write_text(text)
    with pytest.raises(error, match=says) as caught:
        place.cache().acquire(uri)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_manifest_and_a_manifest_that_is_not_there_is_missing(place: Place) -> None:
    uri = put(place, FILES)
    folder = uri.removesuffix("/manifest.json")
    with pytest.raises(BadManifest, match="name the manifest in it"):
        place.cache().acquire(folder)
    with pytest.raises(BundleMissing):
        place.cache().acquire(f"{folder}/other.json")
    assert not (place.root / "cache").exists()


def test_a_manifest_without_its_scheme_is_a_file_like_any_other(place: Place) -> None:
    uri = put(place, FILES).removeprefix("manifest+")
    with place.cache().acquire(uri) as lease:
        assert [path.name for path in lease.path.iterdir()] == ["manifest.json"]


def test_the_address_is_written_and_read_like_any_other() -> None:
    address = BundleAddress.of("manifest+S3://b/m/manifest.json", include=["*.bin"])
    assert BundleAddress.parse(str(address)) == address
    origin_for(address.uri)
