"""Acquire is pin: an address becomes a directory that stays for as long as the lease is held.

The warm path reads one ref, puts one lease down and looks at the files: no origin, no hash, no scan. Everything else
(another version at the origin, a miss, a fetch that somebody else is at) leaves that path for `filling`.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import LocalDiskError, OriginUnreachable
from dsec_blocks.cache.lease import Acquired, Lease
from dsec_blocks.cache.origins import Origin, RemoteObject, origin_for
from dsec_blocks.cache.origins.objects import same_listing
from dsec_blocks.cache.settings import CacheSettings, Revalidate, from_environment
from dsec_blocks.cache.store import filling, memory, turns
from dsec_blocks.cache.store.leases import Held, hold
from dsec_blocks.cache.store.marks import Mark, Owner
from dsec_blocks.cache.store.refs import Ref, is_unchanged, read_listing, read_ref, write_ref
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.sweep import sweep
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.names import ENV_RUN_ID

if TYPE_CHECKING:
    from dsec_blocks.cache.cluster_level import ClusterAddress, ClusterLevel

_DISK_ERRORS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO})


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A node's cache, opened."""

    store: Store
    settings: CacheSettings
    origin_of: Callable[[str], Origin]

    def acquire(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        revalidate: Revalidate | str | None = None,
        who: str | None = None,
        owner: Owner | None = None,
        progress: Callable[[int], None] = lambda count: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Lease:
        """The bundle at `uri`, resident and held by this process (or by `owner`).

        Raises `CacheError`s: `BundleMissing`, `OriginRefused`, `OriginUnreachable`, `OriginChanged`, `CacheFull`,
        `BundleTooLarge`, `UnsafePath`, `LocalDiskError`, `TransferCancelled` …; then nothing is held.
        """
        address = BundleAddress.of(uri, include=include, exclude=exclude)
        mark = self.store.mark(who or _who(), owner=owner)
        how = Revalidate(revalidate) if revalidate is not None else self.settings.revalidate
        began = self.store.clock.monotonic()
        try:
            return self._acquire(address, mark, how, began, progress=progress, cancelled=cancelled)
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            raise LocalDiskError(
                f"{address} cannot be kept in the cache directory {self.store.layout.root}: "
                f"{error.strerror}; make it writable for this user, free some space, or name another directory"
            ) from error

    def prefetch(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        progress: Callable[[int], None] = lambda count: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Acquired:
        """Make the bundle resident and hold nothing afterwards."""
        with self.acquire(
            uri, include=include, exclude=exclude, who="prefetch", progress=progress, cancelled=cancelled
        ) as lease:
            return lease.acquired

    def _acquire(
        self,
        address: BundleAddress,
        mark: Mark,
        how: Revalidate,
        began: float,
        *,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Lease:
        ignored: set[str] = set()
        while True:
            ref = read_ref(self.store.layout, address.key)
            if ref is not None and self._is_fresh(address, ref, how):
                held = hold(self.store, ref.bundle, mark)
                if held is not None:
                    return self._hit(address, held, began)
            origin = self.origin_of(address.uri)
            try:
                items = origin.list(address.uri, include=address.include, exclude=address.exclude)
            except OriginUnreachable as error:
                held = hold(self.store, ref.bundle, mark) if ref is not None else None
                if held is None:
                    raise
                return self._hit(address, held, began, stale=str(error))
            if ref is not None and is_unchanged(read_listing(self.store.layout, address.key), items):
                held = hold(self.store, ref.bundle, mark)
                if held is not None:
                    write_ref(self.store.layout, address.key, replace(ref, checked_at=self.store.clock.now()))
                    return self._hit(address, held, began)
            ask = turns.begin(self.store, address, who=mark.who)
            rival = turns.go_ahead(self.store, ask, ignored=ignored)
            if rival is not None:
                turns.give_up(self.store, ask)
                if not turns.wait_for(self.store, rival, cancelled=cancelled):
                    ignored.add(rival.id)
                continue
            return self._fill(address, items, ask, mark, origin, began, progress=progress, cancelled=cancelled)

    def _fill(
        self,
        address: BundleAddress,
        items: Sequence[RemoteObject],
        ask: Mark,
        mark: Mark,
        origin: Origin,
        began: float,
        *,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Lease:
        from dsec_blocks.cache.transfer import fetch

        def stage(missing: Sequence[RemoteObject], staging: Path) -> Sequence[filling.Fetched]:
            return fetch(
                missing,
                origin=origin,
                staging=staging,
                settings=self.settings.transfer,
                progress=progress,
                cancelled=cancelled,
            )

        def still_listed() -> None:
            after = origin.list(address.uri, include=address.include, exclude=address.exclude)
            same_listing(address.uri, items, after)

        filled = filling.fill(self.store, address, items, ask=ask, fetch=stage, lease=mark, still_listed=still_listed)
        acquired = Acquired(
            was_resident=False,
            seconds=self.store.clock.monotonic() - began,
            fetched_bytes=filled.fetched_bytes,
            fetched_objects=filled.fetched_objects,
        )
        sweep(self.store)
        return _lease(address, filled.held, acquired)

    def _hit(self, address: BundleAddress, held: Held, began: float, *, stale: str = "") -> Lease:
        memory.note_hit(self.store.layout, held.view.bundle)
        seconds = self.store.clock.monotonic() - began
        return _lease(address, held, Acquired(was_resident=True, seconds=seconds, stale=stale))

    def _is_fresh(self, address: BundleAddress, ref: Ref, how: Revalidate) -> bool:
        if address.is_pinned or how is Revalidate.NEVER:
            return True
        # A clock that was set back makes an age negative: then ask the origin.
        age = self.store.clock.now() - ref.checked_at
        return how is Revalidate.TTL and 0 <= age <= self.settings.ttl_seconds


def open_cache(
    settings: CacheSettings | None = None, *, clock: Clock | None = None, cluster: "ClusterAddress | None" = None
) -> Cache:
    """The cache that `settings` describe, or the one of the environment; touches nothing yet.

    With `cluster` what the node lacks comes through the store that the cluster's nodes share.
    """
    settings = settings or from_environment()
    clock = clock or SystemClock()
    store = Store.open(settings.directory, clock=clock, limits=settings.limits, policy=settings.policy)

    @lru_cache(maxsize=1)
    def level() -> "ClusterLevel":
        assert cluster is not None
        return cluster.open(clock=clock, origin=settings.credentials)

    def origin_of(uri: str) -> Origin:
        origin = origin_for(uri, settings.credentials)
        if cluster is None:
            return origin
        from dsec_blocks.cache.cluster_level import Through  # a node without a cluster level needs no ledger

        return Through(level(), origin)

    return Cache(store=store, settings=settings, origin_of=origin_of)


def _lease(address: BundleAddress, held: Held, acquired: Acquired) -> Lease:
    return Lease(
        address=address,
        path=held.view.files,
        bundle=held.view.bundle,
        manifest=held.manifest,
        acquired=acquired,
        mark_path=held.path,
    )


def _who() -> str:
    run = os.environ.get(ENV_RUN_ID)
    return f"run {run}" if run else f"{os.environ.get('USER') or 'somebody'}: {Path(sys.argv[0]).name or 'python'}"
