"""What users of other caches complain about (huggingface_hub, mountpoint-s3, JuiceFS, …), each as a test of ours."""

import fcntl
import os
import shutil
import stat
import threading
import time
from dataclasses import replace

import pytest

from dsec_blocks.cache import Lease, Revalidate
from dsec_blocks.cache.errors import (
    BundleMissing,
    BundleTooLarge,
    CacheError,
    CacheFull,
    InvalidCacheSetting,
    LocalDiskError,
    OriginUnreachable,
    UnknownOrigin,
    UnsafePath,
)
from dsec_blocks.cache.inventory import inventory
from dsec_blocks.cache.store import Limits, check, evict, sweep, usage
from dsec_blocks.cache.store.check import discard_damaged, verify
from dsec_blocks.cache.store.refs import all_refs, read_ref
from dsec_blocks.cache.store.store import Disk
from tests.blocks.cache.conftest import KB, Place


def text_of(lease: Lease) -> dict[str, bytes]:
    return {str(p.relative_to(lease.path)): p.read_bytes() for p in lease.path.rglob("*") if p.is_file()}


def at_once(count: int, work) -> list:  # type: ignore[no-untyped-def, type-arg]
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


# C1, C12: flock that does nothing on network file systems
def test_two_fillers_publish_whole_bundles_though_no_file_lock_works(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)
    uri = place.put("m", w_bin=b"w" * 50 * KB, c_json=b"{}")
    leases = at_once(4, lambda: place.cache().acquire(uri))
    assert [text_of(lease) for lease in leases] == [{"w.bin": b"w" * 50 * KB, "c.json": b"{}"}] * 4
    for lease in leases:
        lease.release()
    assert check(place.cache().store) == []


# C2: open(ref, "w") truncates, a reader sees an empty ref
def test_a_ref_is_replaced_whole_and_not_written_when_nothing_changed(place: Place) -> None:
    uri = place.put("m", w_bin=b"1")
    cache = place.cache(revalidate=Revalidate.ALWAYS)
    cache.acquire(uri).release()
    (key,) = all_refs(cache.store.layout)
    path = cache.store.layout.refs / f"{key}.json"
    before = path.stat().st_ino
    cache.acquire(uri).release()
    assert path.stat().st_ino == before, "same content, same second: not written again"
    place.clock.advance(5)
    cache.acquire(uri).release()
    assert path.stat().st_ino != before, "replaced, not truncated"


# C4: FileExistsError with 50 threads
@pytest.mark.slow
def test_fifty_threads_that_want_the_same_bundle_all_get_it_and_it_is_fetched_once(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * 20 * KB)
    leases = at_once(50, lambda: place.cache().acquire(uri))
    assert len(leases) == 50
    assert sum(lease.acquired.fetched_bytes for lease in leases) == 20 * KB
    assert len({lease.bundle for lease in leases}) == 1


# C6: right size, wrong content, reported as success
def test_verify_finds_content_of_the_right_size_that_is_wrong_and_the_next_acquire_fetches_it_again(
    place: Place,
) -> None:
    uri = place.put("m", w_bin=b"good", c_json=b"{}")
    cache = place.cache()
    with cache.acquire(uri) as lease:
        damaged = lease.path / "w.bin"
        damaged.chmod(0o644)
        damaged.write_bytes(b"evil")
    assert check(cache.store), "a file that can be written is a violation"
    wrong = [(view, path) for view, path, is_right in verify(cache.store.layout) if not is_right]
    assert [path for _, path in wrong] == ["w.bin"]
    assert discard_damaged(cache.store, wrong[0][0], ["w.bin"])
    with cache.acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"good", "c.json": b"{}"}
        assert lease.acquired.fetched_bytes == 6
    assert check(cache.store) == []


# C7: a short file kept as a whole one
def test_a_file_cut_short_in_the_cache_is_fetched_again_alone(place: Place) -> None:
    uri = place.put("m", w_bin=b"long content", c_json=b"{}")
    cache = place.cache()
    with cache.acquire(uri) as lease:
        cut = lease.path / "w.bin"
        cut.chmod(0o644)
        cut.write_bytes(b"short")
    with cache.acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"long content", "c.json": b"{}"}
        assert lease.acquired.fetched_bytes == len(b"long content")
    sweep(cache.store)
    assert check(cache.store) == []


# C8: concurrency=0 marks incomplete files complete
@pytest.mark.parametrize("limits", [{"limit_bytes": 0}, {"limit_bytes": -1}, {"free_bytes": -1}])
def test_limits_that_hold_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidCacheSetting):
        Limits(**limits)


# C10: one dangling link hides everything and falsifies the size
def test_one_damaged_bundle_hides_no_other_and_no_size(place: Place) -> None:
    cache = place.cache()
    with (
        cache.acquire(place.put("good", w_bin=b"g" * 1000)) as good,
        cache.acquire(place.put("bad", w_bin=b"b")) as bad,
    ):
        (bad.path / "w.bin").unlink()
        (bad.path.parent / "manifest.json").unlink()
        told = {resident.bundle: resident for resident in inventory(cache.store)}
    assert told[good.bundle].is_whole and told[good.bundle].size_bytes == 1000
    assert not told[bad.bundle].is_whole
    assert [violation.object.partition(".")[0] for violation in check(cache.store) if violation.rule == "view"] == [
        bad.bundle
    ]


# C11: the blob is deleted, the snapshot is left: "ready" but unreadable
def test_a_view_with_a_file_missing_is_never_handed_out(place: Place) -> None:
    uri = place.put("m", w_bin=b"w", c_json=b"{}")
    cache = place.cache()
    with cache.acquire(uri) as lease:
        first = lease.path
        (lease.path / "c.json").unlink()
    with cache.acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"w", "c.json": b"{}"}
        assert lease.path != first
        assert lease.acquired.fetched_bytes == 0, "the blob was still there"
    sweep(cache.store)
    assert not first.exists()


def test_evicting_twice_is_evicting_once(place: Place) -> None:
    cache = place.cache()
    lease = cache.acquire(place.put("m", w_bin=b"w"))
    lease.release()
    assert all(at_once(4, lambda: evict(cache.store, lease.bundle, why="a test")))
    assert usage(cache.store.layout, cache.store.sight).used_bytes == 0
    assert check(cache.store) == []


# C13: prefetch and main fetch deadlock on the same model
@pytest.mark.slow
def test_a_start_waits_for_the_prefetch_of_the_same_bundle_instead_of_fetching_it_again(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * 100 * KB)
    told: list[object] = []
    slow = threading.Thread(
        target=lambda: told.append(place.cache().prefetch(uri, progress=lambda count: time.sleep(0.2)))
    )
    slow.start()
    time.sleep(0.05)
    with place.cache().acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"w" * 100 * KB}
    slow.join(20)
    assert told


# C14, C18: the cache grows past its limit
def test_room_is_made_before_anything_is_fetched(place: Place) -> None:
    cache = place.cache(limit=100 * KB)
    first = place.put("a", w_bin=b"a" * 60 * KB)
    cache.acquire(first).release()
    seen: list[int] = []
    second = place.put("b", w_bin=b"b" * 60 * KB)
    cache.acquire(
        second, progress=lambda count: seen.append(usage(cache.store.layout, cache.store.sight).used_bytes)
    ).release()
    assert seen and max(seen) <= 100 * KB
    assert [resident.size_bytes for resident in inventory(cache.store)] == [60 * KB]


def test_a_limit_larger_than_the_disk_is_the_disk_less_its_floor(place: Place) -> None:
    disk = Disk(total_bytes=100 * KB, free_bytes=100 * KB, total_inodes=0, free_inodes=0)
    cache = place.cache(limits=Limits(limit_bytes=10**15, free_bytes=30 * KB, free_inodes=0), disk=disk)
    assert cache.store.capacity_bytes() == 70 * KB
    with pytest.raises(BundleTooLarge, match="can hold"):
        cache.acquire(place.put("m", w_bin=b"m" * 80 * KB))


def test_the_floor_of_free_space_holds_whoever_fills_the_disk(place: Place) -> None:
    disk = Disk(total_bytes=1000 * KB, free_bytes=50 * KB, total_inodes=0, free_inodes=0)
    cache = place.cache(limits=Limits(limit_bytes=None, free_bytes=40 * KB, free_inodes=0), disk=disk)
    cache.acquire(place.put("small", w_bin=b"s" * 9 * KB)).release()
    with pytest.raises(CacheFull, match="floor"):
        cache.acquire(place.put("large", w_bin=b"m" * 30 * KB), who="train")


# C15: cleaning a large directory at start exceeds the service's start timeout
def test_opening_a_cache_looks_at_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.cache().acquire(place.put("m", w_bin=b"w")).release()
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("a scan at start"))
    monkeypatch.setattr(os, "listdir", lambda *_: pytest.fail("a listing at start"))
    place.cache()


# C17: a file system that counts no inodes looks full
@pytest.mark.parametrize(("total", "free", "fits"), [(0, 0, True), (1000, 1, False), (1000, 900, True)])
def test_the_floor_of_inodes_is_ignored_where_there_are_none_to_count(
    place: Place, total: int, free: int, fits: bool
) -> None:
    disk = Disk(total_bytes=10**9, free_bytes=10**9, total_inodes=total, free_inodes=free)
    cache = place.cache(limits=Limits(limit_bytes=None, free_bytes=0, free_inodes=100), disk=disk)
    uri = place.put("m", w_bin=b"w")
    if fits:
        cache.acquire(uri).release()
    else:
        with pytest.raises(CacheFull):
            cache.acquire(uri)


# C19: a file is evicted between look-up and pin
def test_a_bundle_that_is_held_is_not_evicted_and_the_error_says_who_holds_it_and_since_when(place: Place) -> None:
    cache = place.cache(limit=100 * KB)
    with cache.acquire(place.put("a", w_bin=b"a" * 60 * KB), who="run train-7") as lease:
        assert not evict(cache.store, lease.bundle, why="a test")
        with pytest.raises(CacheFull) as caught:
            cache.acquire(place.put("b", w_bin=b"b" * 60 * KB))
        assert f"run train-7 (pid {os.getpid()}) since 1970-01-12 13:46:40 UTC" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert text_of(lease) == {"w.bin": b"a" * 60 * KB}
        assert check(cache.store) == []
    cache.acquire(place.put("b", w_bin=b"b" * 60 * KB)).release()


def test_nothing_is_evicted_for_a_bundle_that_would_not_fit_anyway(place: Place) -> None:
    cache = place.cache(limit=100 * KB)
    loose = place.put("loose", w_bin=b"l" * 30 * KB)
    cache.acquire(loose).release()
    with cache.acquire(place.put("held", w_bin=b"h" * 60 * KB)), pytest.raises(CacheFull):
        cache.acquire(place.put("c", w_bin=b"c" * 60 * KB))
    assert cache.acquire(loose).acquired.was_resident


# C21: the index says "gone", the bytes are there
def test_what_is_resident_is_read_from_the_disk_not_from_an_index(place: Place) -> None:
    cache = place.cache(limit=100 * KB)
    cache.acquire(place.put("a", w_bin=b"a" * 60 * KB)).release()
    shutil.rmtree(cache.store.layout.policy)
    cache.store.layout.policy.mkdir()
    cache.acquire(place.put("b", w_bin=b"b" * 60 * KB)).release()
    assert len(inventory(cache.store)) == 1


# C33: SQLite on a shared file system
def test_a_cache_is_files_only(place: Place) -> None:
    cache = place.cache()
    cache.acquire(place.put("m", w_bin=b"w")).release()
    assert not [path for path in cache.store.layout.root.rglob("*") if path.suffix in (".db", ".sqlite")]


# C34: the soft lock of a dead pod never expires
def test_the_lease_of_a_holder_that_cannot_be_seen_expires_and_renewing_keeps_it(place: Place) -> None:
    cache = place.cache()
    me = cache.store.sight.owner()
    elsewhere = replace(me, namespace="pid:[another pod]")
    lease = cache.acquire(place.put("m", w_bin=b"w"), owner=elsewhere)
    place.clock.seconds = time.time()
    lease.renew()
    assert not evict(cache.store, lease.bundle, why="a test")
    place.clock.advance(3600)
    assert evict(cache.store, lease.bundle, why="a test")


# C35: a failed prefetch never blocks a start
def test_a_prefetch_that_fails_leaves_nothing_that_the_start_stumbles_over(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * 100 * KB)

    def fail(count: int) -> None:
        raise OriginUnreachable("nobody answers")

    with pytest.raises(OriginUnreachable):
        place.cache().prefetch(uri, progress=fail)
    with place.cache().acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"w" * 100 * KB}
    assert check(place.cache().store) == []


# --- the rest of what acquire promises --------------------------------------------------------------------------


def test_a_second_start_costs_no_fetch_and_no_listing(place: Place) -> None:
    uri = place.put("m", w_bin=b"w", sub__x_bin=b"x")
    place.cache().acquire(uri).release()
    shutil.rmtree(place.root / "origin")
    cache = replace(place.cache(), origin_of=lambda uri: pytest.fail("the origin was asked"))
    with cache.acquire(uri) as lease:
        assert lease.acquired.was_resident


def test_files_of_a_bundle_are_read_only_and_shared_content_is_stored_once(place: Place) -> None:
    cache = place.cache()
    with (
        cache.acquire(place.put("a", w_bin=b"same" * KB, x_bin=b"x")) as a,
        cache.acquire(place.put("b", w_bin=b"same" * KB, y_bin=b"y")) as b,
    ):
        assert (a.path / "w.bin").stat().st_ino == (b.path / "w.bin").stat().st_ino
        assert stat.S_IMODE((a.path / "w.bin").stat().st_mode) == 0o444
        assert usage(cache.store.layout, cache.store.sight).used_bytes == 4 * KB + 2
    assert evict(cache.store, a.bundle, why="a test")
    with cache.acquire(str(place.root / "origin" / "b")) as b:
        assert text_of(b) == {"w.bin": b"same" * KB, "y.bin": b"y"}
    assert usage(cache.store.layout, cache.store.sight).used_bytes == 4 * KB + 1


def test_only_what_changed_at_the_origin_is_fetched_again_and_a_held_version_stays(place: Place) -> None:
    uri = place.put("m", w_bin=b"w" * 50 * KB, c_json=b"old")
    cache = place.cache(revalidate=Revalidate.ALWAYS)
    with cache.acquire(uri) as old:
        place.put("m", c_json=b"newer")
        with cache.acquire(uri) as new:
            assert new.acquired.fetched_bytes == len(b"newer")
            assert text_of(new)["c.json"] == b"newer"
            assert text_of(old)["c.json"] == b"old"
    assert check(cache.store) == []


@pytest.mark.parametrize(
    ("how", "seconds", "sees"),
    [("ttl", 10, b"old"), ("ttl", 1000, b"new!"), ("never", 10**7, b"old"), ("always", 0, b"new!")],
)
def test_an_address_is_compared_with_its_origin_as_asked(place: Place, how: str, seconds: float, sees: bytes) -> None:
    uri = place.put("m", w_bin=b"old")
    cache = place.cache(revalidate=Revalidate(how), ttl_seconds=300.0)
    cache.acquire(uri).release()
    place.put("m", w_bin=b"new!")
    place.clock.advance(seconds)
    with cache.acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": sees}


def test_a_clock_that_was_set_back_means_asking_the_origin(place: Place) -> None:
    uri = place.put("m", w_bin=b"old")
    cache = place.cache()
    cache.acquire(uri).release()
    place.put("m", w_bin=b"new!")
    place.clock.seconds -= 86_400
    with cache.acquire(uri) as lease:
        assert text_of(lease) == {"w.bin": b"new!"}


def test_a_warm_bundle_starts_while_its_origin_is_down(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    cache = place.cache(revalidate=Revalidate.ALWAYS)
    cache.acquire(uri).release()

    class Down:
        def list(self, uri: str, **_: object) -> tuple[()]:
            raise OriginUnreachable(f"{uri} does not answer")

    down = replace(cache, origin_of=lambda uri: Down())  # type: ignore[arg-type, return-value]
    with down.acquire(uri) as lease:
        assert lease.acquired.was_resident and "does not answer" in lease.acquired.stale
    with pytest.raises(OriginUnreachable):
        down.acquire(place.put("cold", w_bin=b"c"))


def test_patterns_make_a_bundle_of_their_own(place: Place) -> None:
    uri = place.put("m", w_bin=b"w", c_json=b"{}", d_json=b"[]")
    with place.cache().acquire(uri, include=["*.json"], exclude=["d.*"]) as lease:
        assert text_of(lease) == {"c.json": b"{}"}


def test_an_empty_file_in_many_places_is_no_trouble(place: Place) -> None:
    uri = place.put("m", **{f"f{n}_txt": b"" for n in range(50)})
    with place.cache().acquire(uri) as lease:
        assert len(text_of(lease)) == 50
    assert check(place.cache().store) == []


# --- bad input: one line, nothing changed on disk ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("/nowhere/at/all", BundleMissing),
        ("file:///a/../../etc", UnsafePath),
        ("", UnknownOrigin),
        ("models/llama", UnknownOrigin),
        ("gopher://models/llama", UnknownOrigin),
    ],
)
def test_an_address_that_cannot_be_is_one_line_and_changes_nothing(
    place: Place, uri: str, error: type[CacheError]
) -> None:
    with pytest.raises(error) as caught:
        place.cache().acquire(uri)
    assert "\n" not in str(caught.value)
    assert not (place.root / "cache").exists()


def test_a_bundle_larger_than_the_cache_names_both_and_leaves_no_trace(place: Place) -> None:
    cache = place.cache(limit=50 * KB)
    with pytest.raises(BundleTooLarge, match=r"needs 58.6 KiB and the cache in .* can hold 48.8 KiB"):
        cache.acquire(place.put("m", w_bin=b"w" * 60 * KB))
    assert usage(cache.store.layout, cache.store.sight).used_bytes == 0
    assert check(cache.store) == [] and sweep(cache.store).is_nothing


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the same is tested as another user below")
def test_a_read_only_directory_is_one_line(place: Place) -> None:
    (place.root / "cache").mkdir(mode=0o555)
    with pytest.raises(LocalDiskError, match="make it writable"):
        place.cache().acquire(place.put("m", w_bin=b"w"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_directory_is_one_line_to_another_user(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    (place.root / "cache").mkdir(mode=0o555)
    for directory in [place.root, *place.root.parents][:4]:
        if str(directory).startswith("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(LocalDiskError, match="make it writable") as caught:
            place.cache().acquire(uri)
    finally:
        os.seteuid(0)
    assert str(place.root / "cache") in str(caught.value) and "\n" not in str(caught.value)
    assert not list((place.root / "cache").iterdir())


def test_a_directory_with_other_things_in_it_is_never_taken_for_a_cache(place: Place) -> None:
    (place.root / "cache").mkdir()
    (place.root / "cache" / "thesis.tex").write_text("precious")
    with pytest.raises(InvalidCacheSetting, match=r"thesis\.tex"):
        place.cache().acquire(place.put("m", w_bin=b"w"))
    assert [path.name for path in (place.root / "cache").iterdir()] == ["thesis.tex"]


def test_a_file_that_would_also_be_a_directory_is_named(place: Place) -> None:
    from dsec_blocks.cache.bundles import check_paths

    with pytest.raises(UnsafePath, match="both a file and a directory"):
        check_paths(["a", "a/b"])
    with pytest.raises(UnsafePath, match="twice"):
        check_paths(["a", "a"])


def test_an_address_remembers_its_bundle_for_a_month_after_it_was_evicted(place: Place) -> None:
    uri = place.put("m", w_bin=b"w")
    cache = place.cache()
    lease = cache.acquire(uri)
    lease.release()
    evict(cache.store, lease.bundle, why="a test")
    sweep(cache.store)
    assert read_ref(cache.store.layout, lease.address.key) is not None
    place.clock.advance(31 * 86_400)
    sweep(cache.store)
    assert read_ref(cache.store.layout, lease.address.key) is None
