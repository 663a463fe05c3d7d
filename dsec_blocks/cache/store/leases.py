"""Acquire is pin: make a lease, then look for a tombstone. Who evicts does it the other way round.

Whichever of the two comes second sees the first, so a view that somebody holds is never taken away, and no lock is
needed. A pin of an operator is a lease without an owner.
"""

from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.cache.bundles import Manifest, ManifestDamaged
from dsec_blocks.cache.store.marks import Mark, living, marks_in, path_of, place, withdraw
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.views import View, views_of
from dsec_blocks.gateways import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A view that cannot be evicted while `mark` is there."""

    view: View
    manifest: Manifest
    mark: Mark
    path: Path
    """The lease's own file."""


def hold(store: Store, bundle: str, mark: Mark) -> Held | None:
    """A lease on a whole view of `bundle`; None if there is no such view, or only ones that are being evicted."""
    for view in views_of(store.layout, bundle):
        held = hold_view(store, view, mark)
        if held is not None:
            return held
    return None


def hold_view(store: Store, view: View, mark: Mark) -> Held | None:
    """A lease on this view; None if it is being evicted, is gone, or is not whole."""
    path = place(store.layout.leases / view.id, mark, at="cache.lease.place")
    try:
        if not living(store.layout.tombstones / view.id, store.sight):
            manifest = view.manifest()
            if not view.missing(manifest):
                return Held(view=view, manifest=manifest, mark=mark, path=path)
    except ManifestDamaged:
        pass
    except BaseException:
        withdraw(path, at="cache.lease.abandon")
        raise
    withdraw(path, at="cache.lease.withdraw")
    return None


def release(held_path: Path) -> None:
    """Give a lease back; one that is gone is fine."""
    withdraw(held_path, at="cache.lease.release")


def holders(store: Store, bundle: str) -> list[Mark]:
    """Who holds any view of the bundle, oldest first."""
    found: list[Mark] = []
    for view in views_of(store.layout, bundle):
        found += living(store.layout.leases / view.id, store.sight)
    return sorted(found, key=lambda mark: mark.since)


def pin(store: Store, bundle: str, *, who: str) -> Held | None:
    """Keep a bundle until somebody unpins it, across reboots as well; None if it is not resident."""
    pinned = hold_pins(store, bundle)
    if pinned:
        return pinned[0]
    mark = Mark(id=f"pin-{bundle[:8]}", owner=None, since=store.clock.now(), who=who)
    held = hold(store, bundle, mark)
    if held is not None:
        files.write(held.path, mark.to_bytes(), at="cache.pin.write")  # a lease need not outlive the boot, a pin must
    return held


def hold_pins(store: Store, bundle: str) -> list[Held]:
    """The operator's pins on a bundle."""
    found = []
    for view in views_of(store.layout, bundle):
        for path, mark in marks_in(store.layout.leases / view.id):
            if mark.owner is None:
                try:
                    found.append(Held(view=view, manifest=view.manifest(), mark=mark, path=path))
                except ManifestDamaged:
                    continue
    return found


def unpin(store: Store, bundle: str) -> int:
    """Take the operator's pins off; returns how many there were."""
    count = 0
    for view in views_of(store.layout, bundle):
        for path, mark in marks_in(store.layout.leases / view.id):
            if mark.owner is None:
                withdraw(path, at="cache.pin.remove")
                count += 1
    return count


def lease_path(store: Store, view: View, mark: Mark) -> Path:
    """Where a lease lies."""
    return path_of(store.layout.leases / view.id, mark)
