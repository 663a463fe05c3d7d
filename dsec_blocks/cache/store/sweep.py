"""Repair: what the dead left behind is finished or taken away, by anybody, at any time, as often as they like.

Nothing here takes away what a living process works on, and a second sweep finds nothing to do.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.cache.bundles import ManifestDamaged
from dsec_blocks.cache.store import evicting
from dsec_blocks.cache.store.layout import names
from dsec_blocks.cache.store.marks import Mark, marks_in, withdraw
from dsec_blocks.cache.store.refs import all_refs, remove_ref
from dsec_blocks.cache.store.staging import drop_staging
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import is_left
from dsec_blocks.cache.store.views import View, all_views, views_of
from dsec_blocks.gateways import files

KEEP_STAGING_SECONDS = 24 * 3600.0
"""How long what a dead fetch left can still be resumed."""
KEEP_REF_SECONDS = 30 * 24 * 3600.0
"""How long an address is remembered whose bundle was evicted."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did, by kind."""

    counts: dict[str, int]

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to repair."""
        return not any(self.counts.values())

    def __str__(self) -> str:
        told = [f"{count} {kind}" for kind, count in sorted(self.counts.items()) if count]
        return ", ".join(told) or "nothing to repair"


def sweep(store: Store, *, staging_seconds: float = KEEP_STAGING_SECONDS) -> Swept:
    """Finish or take away everything whose owner is dead. A directory that is no cache is left alone."""
    counts: Counter[str] = Counter()
    if not store.layout.exists:
        return Swept({})
    _marks(store, counts)
    _staging(store, counts, staging_seconds)
    _views(store, counts)
    if not _is_evicting(store):
        counts["trash"] += evicting.empty_trash(store.layout)
        unnamed = evicting.unnamed_blobs(store.layout)
        evicting.drop_blobs(store.layout, unnamed)
        counts["blobs without a bundle"] += len(unnamed)
    _refs(store, counts)
    _temporaries(store, counts)
    return Swept({kind: count for kind, count in counts.items() if count})


def _marks(store: Store, counts: Counter[str]) -> None:
    for kind in ("leases", "tombstones"):
        root = store.layout.root / kind
        for name in names(root):
            for path, mark in list(marks_in(root / name)):
                if store.sight.is_dead(mark, path) or (not store.layout.view(name).exists() and mark.owner is None):
                    withdraw(path, at="cache.mark.sweep")
                    counts[kind] += 1
            files.remove_empty(root / name)
    for path, mark in list(marks_in(store.layout.asks)):
        if store.sight.is_dead(mark, path):
            drop_staging(store.layout, mark.id)
            withdraw(path, at="cache.ask.sweep")
            counts["asks"] += 1


def _staging(store: Store, counts: Counter[str], staging_seconds: float) -> None:
    present = names(store.layout.staging)  # before the marks: whoever makes a staging directory made its mark first
    asks = {mark.id for _, mark in marks_in(store.layout.asks)}
    granted = {mark.id: (path, mark) for path, mark in marks_in(store.layout.reservations)}
    for name, (path, mark) in granted.items():
        if not (is_left(mark, path, store.sight) or store.sight.is_dead(mark, path)):
            continue
        data = store.layout.staging / name / "data"
        if _is_worth_resuming(store, mark, data, staging_seconds):
            continue
        drop_staging(store.layout, name)
        withdraw(path, at="cache.reservation.expire")
        counts["fetches that died"] += 1
    for name in present:
        if name not in asks and name not in granted:
            drop_staging(store.layout, name)
            counts["staging directories"] += 1


def _is_worth_resuming(store: Store, mark: Mark, data: Path, staging_seconds: float) -> bool:
    """Data is there, not too old, and none of it is a blob by now (then the fetch was over)."""
    if not any(data.rglob("*")):
        return False
    if any(path.stat().st_nlink > 1 for path in data.rglob("*") if path.is_file()):
        return False
    return store.clock.now() - mark.since <= staging_seconds


def _views(store: Store, counts: Counter[str]) -> None:
    """Of several instances of a bundle one is enough, and one that is not whole serves nobody."""
    for bundle in names(store.layout.views):
        whole: list[View] = []
        for view in views_of(store.layout, bundle):
            if _is_whole(view):
                whole.append(view)
            elif evicting.evict_view(store, view, why="a view that is not whole"):
                counts["views that were not whole"] += 1
        spare = [view for view in whole if not _is_held(store, view)]
        for view in spare[1:] if len(spare) == len(whole) else spare:
            if evicting.evict_view(store, view, why="a second view of the same bundle"):
                counts["second views"] += 1
        files.remove_empty(store.layout.views / bundle)


def _is_whole(view: View) -> bool:
    try:
        return not view.missing(view.manifest())
    except ManifestDamaged:
        return False


def _is_held(store: Store, view: View) -> bool:
    return any(not store.sight.is_dead(mark, path) for path, mark in marks_in(store.layout.leases / view.id))


def _is_evicting(store: Store) -> bool:
    return any(names(store.layout.tombstones / name) for name in names(store.layout.tombstones))


def _refs(store: Store, counts: Counter[str]) -> None:
    for key, ref in all_refs(store.layout).items():
        is_resident = bool(names(store.layout.views / ref.bundle))
        if not is_resident and not 0 <= store.clock.now() - ref.checked_at <= KEEP_REF_SECONDS:
            remove_ref(store.layout, key)
            counts["addresses"] += 1


def _temporaries(store: Store, counts: Counter[str]) -> None:
    """Unfinished writes of processes that died: a day is more than any write takes."""
    known = {view.path for view in all_views(store.layout)}
    directories = [store.layout.root, *(store.layout.root / kind for kind in ("refs", "listings", "policy", "asks"))]
    directories += [store.layout.reservations, *known]
    directories += [store.layout.leases / name for name in names(store.layout.leases)]
    for directory in directories:
        with suppress(FileNotFoundError):
            for path in directory.glob(".*"):
                with suppress(FileNotFoundError):
                    if path.is_file() and store.clock.now() - path.stat().st_mtime > KEEP_STAGING_SECONDS:
                        files.remove(path, at="cache.temporary.sweep")
                        counts["unfinished writes"] += 1
