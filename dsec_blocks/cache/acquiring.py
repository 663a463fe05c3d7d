"""Acquire is pin: an address becomes a directory that stays for as long as the lease is held.

The warm path reads one ref, puts one lease down and looks at the files: no origin, no hash, no scan. Everything else
(another version at the origin, a miss, a fetch that somebody else is at) leaves that path for `filling`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from dsec_blocks.cache.accounting import account
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import OriginChanged, OriginUnreachable
from dsec_blocks.cache.lease import Acquired, Lease
from dsec_blocks.cache.origins import Origin, RemoteObject
from dsec_blocks.cache.origins.objects import same_listing
from dsec_blocks.cache.renewing import RENEWALS
from dsec_blocks.cache.settings import CacheSettings, Revalidate
from dsec_blocks.cache.store import filling, memory, turns
from dsec_blocks.cache.store.leases import Held, hold
from dsec_blocks.cache.store.marks import Mark, Owner, path_of
from dsec_blocks.cache.store.precedence import GivingWay
from dsec_blocks.cache.store.refs import Ref, is_unchanged, read_listing, read_ref, write_ref
from dsec_blocks.cache.store.refusals import told
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.sweep import sweep
from dsec_blocks.cache.store.views import views_of
from dsec_blocks.model.names import ENV_RUN_ID

SPARE_PATIENCE_SECONDS = 3.0
"""How long an origin that does not answer is asked by one who has a copy already."""
SILENCE_SECONDS = 60.0
"""How long such an origin is then not asked again, unless every use is to be compared."""
MOST_FETCHES = 3
"""How often a bundle that changes while it is fetched is begun; what did not change is not fetched again."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A node's cache, opened."""

    store: Store
    settings: CacheSettings
    origin_of: Callable[[str], Origin]
    identity: str = ""
    """Who asks the origins: what one was let in to see is not given to another before he was let in as well."""

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
        listed: Callable[[int, int], None] = lambda total_bytes, missing_bytes: None,
        cancelled: Callable[[], bool] = lambda: False,
        background: bool = False,
    ) -> Lease:
        """The bundle at `uri`, resident and held by this process (or by `owner`).

        `listed` hears, before anything is fetched, how large the bundle is and how much of it is not here.
        `background`: nobody waits for it, so it gives way to every fetch that somebody waits for.

        Raises `CacheError`s: `BundleMissing`, `OriginRefused`, `OriginUnreachable`, `OriginChanged`, `CacheFull`,
        `BundleTooLarge`, `UnsafePath`, `LocalDiskError`, `TransferCancelled` …; then nothing is held.
        """
        address = BundleAddress.of(uri, include=include, exclude=exclude)
        mark = self.store.mark(who or _who(), owner=owner)
        how = Revalidate(revalidate) if revalidate is not None else self.settings.revalidate
        began = self.store.clock.monotonic()
        with told(self.store.layout.root, f"{address} cannot be kept"):
            lease = self._acquire(
                address, mark, how, began, progress=progress, listed=listed, cancelled=cancelled, background=background
            )
        account(self.store, lease, who=mark.who, background=background)
        return lease

    def prefetch(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        progress: Callable[[int], None] = lambda count: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Acquired:
        """Make the bundle resident and hold nothing afterwards; gives way to fetches that a start waits for."""
        with self.acquire(
            uri,
            include=include,
            exclude=exclude,
            who="prefetch",
            progress=progress,
            cancelled=cancelled,
            background=True,
        ) as lease:
            return lease.acquired

    @retry(retry=retry_if_exception_type(OriginChanged), stop=stop_after_attempt(MOST_FETCHES), reraise=True)
    def _acquire(
        self,
        address: BundleAddress,
        mark: Mark,
        how: Revalidate,
        began: float,
        *,
        progress: Callable[[int], None],
        listed: Callable[[int, int], None],
        cancelled: Callable[[], bool],
        background: bool,
    ) -> Lease:
        ignored: set[str] = set()
        while True:
            ref = read_ref(self.store.layout, address.key)
            if ref is not None and self._is_fresh(address, ref, how):
                held = hold(self.store, ref.bundle, mark)
                if held is not None:
                    return self._hit(address, held, began)
            # Who has a copy that he was let in to see can do without the origin, and waits little for it.
            spare = ref if ref is not None and self.identity in ref.seen_by else None
            if spare is not None and (silence := self._was_silent(spare, how)):
                held = hold(self.store, spare.bundle, mark)
                if held is not None:
                    return self._hit(address, held, began, stale=silence)
            is_here = spare is not None and bool(views_of(self.store.layout, spare.bundle))
            origin = self.origin_of(address.uri)
            try:
                items = origin.list(
                    address.uri,
                    include=address.include,
                    exclude=address.exclude,
                    patience_seconds=SPARE_PATIENCE_SECONDS if is_here else None,
                )
            except OriginUnreachable as error:
                held = hold(self.store, spare.bundle, mark) if spare is not None else None
                if spare is None or held is None:
                    raise
                with suppress(OSError):  # it saves the next start a wait, and must not fail this one
                    silent = replace(spare, unreachable_at=self.store.clock.now())
                    write_ref(self.store.layout, address.key, silent)
                return self._hit(address, held, began, stale=str(error))
            if ref is not None and is_unchanged(read_listing(self.store.layout, address.key), items):
                held = hold(self.store, ref.bundle, mark)
                if held is not None:
                    write_ref(self.store.layout, address.key, ref.compared(self.identity, at=self.store.clock.now()))
                    return self._hit(address, held, began)
            ask = turns.begin(self.store, address, who=mark.who, background=background)
            rival = turns.go_ahead(self.store, ask, ignored=ignored)
            if rival is not None:
                turns.give_up(self.store, ask)
                if not turns.wait_for(self.store, rival, who=mark.who, cancelled=cancelled, background=background):
                    ignored.add(rival.id)
                continue
            if background:
                progress = GivingWay(self.store, ask, progress=progress, cancelled=cancelled)
            return self._fill(
                address, items, ask, mark, origin, began, progress=progress, listed=listed, cancelled=cancelled
            )

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
        listed: Callable[[int, int], None],
        cancelled: Callable[[], bool],
    ) -> Lease:
        from dsec_blocks.cache.transfer import fetch

        arrived_at = fetch_began = self.store.clock.monotonic()

        def arrived(count: int) -> None:
            nonlocal arrived_at
            arrived_at = self.store.clock.monotonic()
            progress(count)

        def stage(missing: Sequence[RemoteObject], staging: Path) -> Sequence[filling.Fetched]:
            sizes = [sum(item.size_bytes for item in some) for some in (items, missing)]
            listed(*sizes)
            return fetch(
                missing,
                origin=origin,
                staging=staging,
                settings=self.settings.transfer,
                progress=arrived,
                cancelled=cancelled,
            )

        def still_listed() -> None:
            after = origin.list(address.uri, include=address.include, exclude=address.exclude)
            same_listing(address.uri, items, after)

        places = (self.store.layout.asks, self.store.layout.reservations)
        with RENEWALS.kept(*(path_of(place, ask) for place in places)):
            filled = filling.fill(
                self.store,
                address,
                items,
                ask=ask,
                fetch=stage,
                lease=mark,
                identity=self.identity,
                still_listed=still_listed,
            )
        ready_at = self.store.clock.monotonic()
        acquired = Acquired(
            was_resident=False,
            seconds=ready_at - began,
            fetched_bytes=filled.fetched_bytes,
            fetched_objects=filled.fetched_objects,
            cluster_bytes=filled.cluster_bytes,
            fetch_seconds=arrived_at - fetch_began,
            verify_seconds=ready_at - arrived_at,
        )
        sweep(self.store)
        return _lease(address, filled.held, acquired)

    def _hit(self, address: BundleAddress, held: Held, began: float, *, stale: str = "") -> Lease:
        memory.note_hit(self.store.layout, held.view.bundle)
        seconds = self.store.clock.monotonic() - began
        return _lease(address, held, Acquired(was_resident=True, seconds=seconds, stale=stale))

    def _was_silent(self, ref: Ref, how: Revalidate) -> str:
        """Why the origin need not be asked just now: it was in vain a moment ago. Empty if it has to be."""
        if ref.unreachable_at is None or how is not Revalidate.TTL:
            return ""
        age = self.store.clock.now() - ref.unreachable_at
        return f"{ref.uri} did not answer {age:.0f} s ago" if 0 <= age <= SILENCE_SECONDS else ""

    def _is_fresh(self, address: BundleAddress, ref: Ref, how: Revalidate) -> bool:
        asked_at = ref.seen_by.get(self.identity)
        if asked_at is None:
            return False
        if address.is_pinned or how is Revalidate.NEVER:
            return True
        # A clock that was set back makes an age negative: then ask the origin.
        age = self.store.clock.now() - asked_at
        return how is Revalidate.TTL and 0 <= age <= self.settings.ttl_seconds


def _lease(address: BundleAddress, held: Held, acquired: Acquired) -> Lease:
    RENEWALS.keep(held.path)
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
