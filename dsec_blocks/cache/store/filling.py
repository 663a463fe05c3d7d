"""Filling the cache with one bundle: ask, reserve, fetch, publish. Killed anywhere, the next one finishes or resumes.

Order: blobs → view (with its manifest) → listing → ref. Whoever fills first secures by a hard link what is resident
already, so that an eviction in the meantime cannot take it away; what it cannot secure, it fetches.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from dsec_blocks.cache.bundles import BundleAddress, Manifest, ManifestFile, bare_digest, check_paths
from dsec_blocks.cache.errors import (
    CacheFull,
    ContentMismatch,
    LocalDiskError,
    OriginChanged,
    OriginUnreachable,
    TransferCancelled,
)
from dsec_blocks.cache.origins.objects import RemoteObject
from dsec_blocks.cache.store import memory
from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.cache.store.leases import Held, lease_path
from dsec_blocks.cache.store.marks import Mark, marks_in, path_of, place, withdraw
from dsec_blocks.cache.store.refs import Ref, known_digests, write_listing, write_ref
from dsec_blocks.cache.store.room import Need, grant
from dsec_blocks.cache.store.staging import drop_staging
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import is_left, written_bytes
from dsec_blocks.cache.store.views import View, keep_blob, link_blob, publish_view
from dsec_blocks.gateways import files

RESUMABLE = (OriginUnreachable, OriginChanged, TransferCancelled, LocalDiskError, CacheFull)
"""Failures after which what was fetched so far is kept for the next try; the journal knows of which version it is."""


class Fetched(Protocol):
    """What a transfer says about one object that it staged (see `dsec_blocks.cache.transfer`)."""

    @property
    def item(self) -> RemoteObject:
        """The object."""

    @property
    def path(self) -> Path:
        """Where it lies, complete and durable."""

    @property
    def digest(self) -> str:
        """Its blake3."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def fetched_bytes(self) -> int:
        """What was moved for it this time."""

    @property
    def source(self) -> str:
        """Where from: `origin` or `cluster`."""


Fetch = Callable[[Sequence[RemoteObject], Path], Sequence[Fetched]]
"""Objects and a staging directory → the objects, staged."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A bundle that has just become resident, held."""

    held: Held
    fetched_bytes: int
    fetched_objects: int
    cluster_bytes: int
    seconds: float


def fill(
    store: Store,
    address: BundleAddress,
    items: Sequence[RemoteObject],
    *,
    ask: Mark,
    fetch: Fetch,
    lease: Mark,
    identity: str = "",
    still_listed: Callable[[], None] = lambda: None,
) -> Filled:
    """Make the listed bundle resident, held by `lease`. The ask is gone afterwards, whatever happens.

    `identity` is who was let in by the origin; `still_listed` raises `OriginChanged` if it no longer lists what it did.
    """
    layout = store.layout
    staging = layout.staging / ask.id
    building = staging / "view"
    reservation = path_of(layout.reservations, ask)
    began = store.clock.monotonic()
    try:
        check_paths([item.path for item in items])
        files.make_directory(building / "files")
        known = known_digests(layout, address.uri)
        present: dict[str, str] = {}
        for item in items:
            digest = known.get((item.path, item.version, item.size_bytes))
            target = building / "files" / item.path
            if digest is not None and link_blob(layout, digest, target, size_bytes=item.size_bytes):
                present[item.path] = digest
        missing = sorted((item for item in items if item.path not in present), key=lambda item: item.path)
        # For whoever asks how much of the bundle is here before it is: see `inventory.on_its_way`.
        ask.fields["total_bytes"] = sum(item.size_bytes for item in items)
        ask.fields["missing_bytes"] = sum(item.size_bytes for item in missing)
        _take_over(store, ask)
        need = Need(
            what=str(address),
            size_bytes=max(ask.fields["missing_bytes"], written_bytes(layout, ask.id)),
            files=len(items) + 1,
            shared=frozenset(present.values()),
        )
        grant(store, ask, need)
        fetched = _fetch(fetch, missing, staging / "data")
        if missing:
            still_listed()
        for one in fetched:
            digest = bare_digest(one.digest)
            assert digest is not None
            keep_blob(layout, one.path, digest, building / "files" / one.item.path)
            present[one.item.path] = digest
        manifest = Manifest.of(ManifestFile(item.path, item.size_bytes, present[item.path]) for item in items)
        held = _publish(store, building, manifest, lease)
    except BaseException as error:
        _clear_up(store, ask, keep=isinstance(error, RESUMABLE))
        raise
    seconds = store.clock.monotonic() - began
    try:
        _point(store, address, items, present, held, identity=identity)
        moved = sum(one.fetched_bytes for one in fetched)
        cost = memory.refetch_guess(manifest.size_bytes, objects=len(items))
        if moved >= manifest.size_bytes / 2 and moved > 0:
            cost = seconds * manifest.size_bytes / moved
        memory.note_admission(layout, manifest.bundle, size_bytes=manifest.size_bytes, refetch_seconds=cost)
    except BaseException:
        withdraw(held.path, at="cache.lease.undo")
        raise
    finally:
        # The reservation first: until then its files belong to it, afterwards they are the resident blobs.
        withdraw(reservation, at="cache.reservation.release")
        drop_staging(store.layout, ask.id)
    from_cluster = sum(one.fetched_bytes for one in fetched if one.source == "cluster")
    return Filled(held, moved, len(fetched), from_cluster, seconds)


def _take_over(store: Store, ask: Mark) -> None:
    """Go on with the most that a dead fetch of the same address left behind; the others' is dropped.

    Before any room is asked for: the rename has one winner, and only what lies in the own staging directory is taken
    off what is asked for. Nobody can lose what was counted as his, and no byte is counted for two.
    """
    layout = store.layout
    data = layout.staging / ask.id / "data"
    left = [
        path
        for directory in (layout.asks, layout.reservations)
        for path, mark in marks_in(directory)
        if mark.fields.get("key") == ask.fields["key"] and is_left(mark, path, store.sight)
    ]
    for path in sorted(left, key=lambda path: written_bytes(layout, path.stem), reverse=True):
        if not data.exists():
            with suppress(FileNotFoundError):
                files.rename(layout.staging / path.stem / "data", data, at="cache.staging.take_over")
        drop_staging(layout, path.stem)
        withdraw(path, at="cache.reservation.replace")


def _fetch(fetch: Fetch, missing: Sequence[RemoteObject], data: Path) -> list[Fetched]:
    if not missing:
        return []
    files.make_directory(data)
    fetched = list(fetch(missing, data))
    for item, one in zip(missing, sorted(fetched, key=lambda one: one.item.path), strict=True):
        promised = bare_digest(item.digest)
        if one.size_bytes != item.size_bytes or one.path.stat().st_size != item.size_bytes:
            raise ContentMismatch(f"{item.uri} has {one.size_bytes} bytes and was listed with {item.size_bytes}")
        if promised is not None and promised != bare_digest(one.digest):
            raise ContentMismatch(f"{item.uri} is not the content that its manifest promises; nothing was published")
    return fetched


def _publish(store: Store, building: Path, manifest: Manifest, lease: Mark) -> Held:
    """Lease first, then the rename: at no moment is the new view anybody's prey."""
    nonce = uuid4().hex[:12]
    view = View(f"{manifest.bundle}.{nonce}", store.layout.view(f"{manifest.bundle}.{nonce}"))
    path = place(store.layout.leases / view.id, lease, at="cache.lease.first")
    try:
        publish_view(store.layout, building, manifest, nonce)
    except BaseException:
        withdraw(path, at="cache.lease.first_undo")
        raise
    return Held(view=view, manifest=manifest, mark=lease, path=lease_path(store, view, lease))


def _point(
    store: Store,
    address: BundleAddress,
    items: Sequence[RemoteObject],
    digests: Mapping[str, str],
    held: Held,
    *,
    identity: str,
) -> None:
    now = store.clock.now()
    write_listing(store.layout, address.key, items, digests)
    ref = Ref(
        uri=address.uri,
        include=address.include,
        exclude=address.exclude,
        bundle=held.view.bundle,
        size_bytes=held.manifest.size_bytes,
        files=len(held.manifest.files),
        checked_at=now,
        fetched_at=now,
        seen_by={identity: now},
    )
    write_ref(store.layout, address.key, ref)


def _clear_up(store: Store, ask: Mark, *, keep: bool) -> None:
    """After a failure: keep what can be resumed, else leave no trace."""
    layout: Layout = store.layout
    reservation = path_of(layout.reservations, ask)
    if keep and written_bytes(layout, ask.id):
        kept = replace(ask, fields={**ask.fields, "abandoned": True, "bytes": 0})
        place(layout.reservations, kept, at="cache.reservation.abandon")
    else:
        store.sight.over.add(ask.id)  # if it stays all the same, the next fetch does not wait for this one
        drop_staging(layout, ask.id)
        withdraw(reservation, at="cache.reservation.cancel")
    withdraw(path_of(layout.asks, ask), at="cache.ask.cancel")
    store.sight.over.discard(ask.id)
