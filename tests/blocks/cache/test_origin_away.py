"""A warm bundle starts while its origin is down, whatever "down" looks like, and does not wait for it each time."""

import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dsec_blocks.cache import Cache, Revalidate
from dsec_blocks.cache.acquiring import SILENCE_SECONDS, SPARE_PATIENCE_SECONDS
from dsec_blocks.cache.errors import BundleMissing, OriginRefused, OriginUnreachable, RootGone
from dsec_blocks.cache.origins import OriginCredentials, RemoteObject, origin_for
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.store.refs import all_refs
from tests.blocks.cache.conftest import Place
from tests.fixtures.disks import SmallDisk, small_disk
from tests.fixtures.misbehaving import MisbehavingOrigin, origin_server
from tests.fixtures.scripted_s3 import ScriptedS3

__all__ = ["origin_server", "small_disk"]
URI = "s3://models/llama"
TTL = 300.0


@pytest.fixture
def store(origin_server: MisbehavingOrigin) -> ScriptedS3:
    store = ScriptedS3(origin_server)
    store.objects["llama/w.bin"] = b"w" * 1000
    return store


def cache_of(place: Place, store: ScriptedS3, **settings: Revalidate) -> Cache:
    credentials = OriginCredentials(endpoint_url=store.endpoint_url, access_key_id="key", secret_access_key="secret")
    return place.cache(credentials=credentials, ttl_seconds=TTL, **settings)


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_warm_bundle_starts_while_its_store_answers_with_a_transient_status(
    place: Place, store: ScriptedS3, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec_blocks.cache.acquiring.SPARE_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("dsec_blocks.gateways.objects.PATIENCE_SECONDS", 0.0)
    cache = cache_of(place, store)
    cache.acquire(URI).release()
    store.is_down = status
    place.clock.advance(TTL + 1)
    with cache.acquire(URI) as lease:
        assert lease.acquired.was_resident and f"HTTP {status}" in lease.acquired.stale
    with pytest.raises(OriginUnreachable, match=f"does not answer \\(HTTP {status}"):
        cache.acquire("s3://models/another")


def test_a_store_that_refuses_is_not_taken_for_one_that_is_away(place: Place, store: ScriptedS3) -> None:
    cache = cache_of(place, store)
    cache.acquire(URI).release()
    store.is_down = 403
    place.clock.advance(TTL + 1)
    with pytest.raises(OriginRefused):
        cache.acquire(URI)


def test_starts_within_the_minute_after_a_vain_question_ask_nothing(
    place: Place, store: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec_blocks.cache.acquiring.SPARE_PATIENCE_SECONDS", 0.0)
    cache = cache_of(place, store)
    cache.acquire(URI).release()
    store.is_down = 503
    place.clock.advance(TTL + 1)
    store.questions.clear()
    cache.acquire(URI).release()
    assert len(store.questions) == 1, "without patience it asks once"
    place.clock.advance(SILENCE_SECONDS - 1)
    with cache.acquire(URI) as lease:
        assert lease.acquired.stale == f"{URI} did not answer {SILENCE_SECONDS - 1:.0f} s ago"
    assert len(store.questions) == 1
    store.is_down = 0
    store.objects["llama/w.bin"] = b"new"
    place.clock.advance(2)
    with cache.acquire(URI) as lease:
        assert (lease.path / "w.bin").read_bytes() == b"new" and not lease.acquired.stale
    (ref,) = all_refs(cache.store.layout).values()
    assert ref.unreachable_at is None


class Recording(PathOrigin):
    """An origin that remembers how patiently it was asked."""

    def __init__(self) -> None:
        self.patience: list[float | None] = []
        self.is_down = False

    def list(
        self, uri: str, *, include: Sequence[str] = (), exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:  # fmt: skip
        self.patience.append(patience_seconds)
        if self.is_down:
            raise OriginUnreachable(f"{uri} does not answer")
        return super().list(uri, include=include, exclude=exclude)


def test_only_who_has_a_copy_that_he_may_see_waits_little(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    origin = Recording()
    cache = replace(place.cache(revalidate=Revalidate.ALWAYS), origin_of=lambda _: origin)
    cache.acquire(uri).release()
    assert origin.patience == [None, None], "before the fetch and after it: nothing was here"
    cache.acquire(uri).release()
    replace(cache, identity="a stranger").acquire(uri).release()
    assert origin.patience[2:] == [SPARE_PATIENCE_SECONDS, None]


def test_whoever_compares_at_every_use_asks_at_every_use(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    origin = Recording()
    cache = replace(place.cache(revalidate=Revalidate.ALWAYS), origin_of=lambda _: origin)
    cache.acquire(uri).release()
    origin.is_down = True
    for _ in range(3):
        cache.acquire(uri).release()
    assert origin.patience[2:] == [SPARE_PATIENCE_SECONDS] * 3


def test_an_http_origin_is_asked_as_briefly(place: Place, origin_server: MisbehavingOrigin) -> None:
    """A server that takes the connection and says nothing: the question ends with the patience, not with the stall."""
    origin_server.files["w.bin"] = b"w"
    uri = f"{origin_server.url}/w.bin"
    opened: list[tuple[float, float]] = []
    from dsec_blocks.cache.origins import asking

    class Seen(asking.Connections):
        def __init__(self, **seconds: float) -> None:
            opened.append((seconds["connect_seconds"], seconds["stall_seconds"]))
            super().__init__(**seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asking, "Connections", Seen)
        assert origin_for(uri).list(uri, patience_seconds=2.0)
    assert opened == [(2.0, 2.0)]


def test_a_share_that_was_unmounted_does_not_take_its_warm_bundles_along(
    place: Place, small_disk: Callable[[int], SmallDisk]
) -> None:
    disk = small_disk(2**20)
    (disk.path / "m").mkdir()
    (disk.path / "m" / "w.bin").write_bytes(b"w")
    cache = place.cache(ttl_seconds=TTL)
    for uri in (f"{disk.path}/m", str(disk.path)):
        cache.acquire(uri).release()
    subprocess.run(["umount", str(disk.path)], check=True)
    place.clock.advance(TTL + 1)
    for uri in (f"{disk.path}/m", str(disk.path)):
        with cache.acquire(uri) as lease:
            assert lease.acquired.was_resident and str(disk.path) in lease.acquired.stale
    with pytest.raises(RootGone, match="does not exist"):
        cache.acquire(f"{disk.path}/m", include=["*.bin"])


def test_a_path_that_never_was_is_still_a_bundle_that_is_missing(place: Place) -> None:
    with pytest.raises(BundleMissing, match="/nowhere does not exist") as caught:
        place.cache().acquire("/nowhere")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN])
def test_a_share_that_fails_is_not_blamed_on_the_cache_directory(
    place: Place, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = place.put("m", w_bin=b"w")
    cold = place.put("cold", w_bin=b"w")
    cache = place.cache(ttl_seconds=TTL)
    cache.acquire(uri).release()
    place.clock.advance(TTL + 1)

    def fails(top: object, **_: object) -> None:
        raise OSError(number, os.strerror(number), str(top))

    with monkeypatch.context() as patched:
        patched.setattr("dsec_blocks.cache.origins.paths.os.walk", fails)
        with cache.acquire(uri) as lease:
            assert os.strerror(number) in lease.acquired.stale
        with pytest.raises(OriginUnreachable, match="its file system does not answer") as caught:
            cache.acquire(cold)
    assert "cache directory" not in str(caught.value)
