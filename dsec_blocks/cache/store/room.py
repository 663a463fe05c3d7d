"""Admission: room is made before anything is fetched, and what is granted never exceeds the limit.

Whoever wants room writes an ask down, and only then adds up what is there, other people's asks included. Of two who
ask at once, at least one sees the other, so no lock is needed for "resident + reserved + in flight + trash ≤ limit".
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from dsec_blocks.cache.bundles import Manifest
from dsec_blocks.cache.errors import BundleTooLarge, CacheFull
from dsec_blocks.cache.store import events, evicting, memory
from dsec_blocks.cache.store.leases import holders
from dsec_blocks.cache.store.marks import Mark, marks_in, path_of, place, withdraw
from dsec_blocks.cache.store.staging import drop_staging
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.sweep import sweep
from dsec_blocks.cache.store.usage import Usage, is_left, usage
from dsec_blocks.cache.store.views import resident_bundles
from dsec_blocks.cache.store.wording import full_message
from dsec_blocks.gateways import files
from dsec_blocks.model.units import format_memory

TRIES = 60
"""How often an ask that collides with another one is repeated before the cache counts as full."""
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.005, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What somebody wants room for."""

    what: str
    """The bundle, for messages."""
    size_bytes: int
    files: int
    shared: Collection[str] = ()
    """Digests of resident blobs that belong to it: evicting another bundle does not free them."""


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much a cache is over its limits; nothing above zero means that there is room."""

    size_bytes: int
    files: int

    @property
    def is_none(self) -> bool:
        """Whether there is room."""
        return self.size_bytes <= 0 and self.files <= 0


def excess(store: Store, used: Usage, need: Need) -> Excess:
    """How much must leave for what is in `used` (the own ask included)."""
    disk = store.disk(store.layout.root)
    over = used.unwritten_bytes + store.limits.free_bytes - disk.free_bytes
    if store.limits.limit_bytes is not None:
        over = max(over, used.used_bytes + used.asked_bytes - store.limits.limit_bytes)
    over_inodes = 0
    if disk.total_inodes > 0:  # btrfs and some network file systems count none and have no end of them
        over_inodes = need.files + store.limits.free_inodes - disk.free_inodes
    return Excess(over, over_inodes)


def grant(store: Store, ask: Mark, need: Need) -> Path:
    """Turn an ask into a reservation of `need`, evicting what must leave; returns the reservation's path.

    Raises `BundleTooLarge` or `CacheFull`, and then nothing was evicted and the ask is withdrawn.
    """
    path = path_of(store.layout.asks, ask)
    try:
        _fits_at_all(store, need)
        for turn in range(TRIES):
            place(store.layout.asks, replace(ask, fields={**ask.fields, "bytes": need.size_bytes}), at="cache.ask.grow")
            used = usage(store.layout, store.sight)
            if not excess(store, used, need).is_none:
                # A scan may count twice what was published during it; the smaller of two is as safe as each.
                used = min(used, usage(store.layout, store.sight), key=lambda u: u.used_bytes + u.asked_bytes)
            over = excess(store, used, need)
            if over.is_none:
                reservation = path_of(store.layout.reservations, ask)
                files.rename(path, reservation, at="cache.reservation.grant")
                return reservation
            rivals = [other for other in used.asks if other.id != ask.id and other.fields.get("bytes")]
            if not _make_room(store, ask, need, over):
                if not rivals or turn == TRIES - 1:
                    raise CacheFull(full_message(store, need.what, need.size_bytes, used))
                place(store.layout.asks, replace(ask, fields={**ask.fields, "bytes": 0}), at="cache.ask.shrink")
                store.pause(random.uniform(_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS) * (1 + turn / 4))
        raise CacheFull(full_message(store, need.what, need.size_bytes, usage(store.layout, store.sight)))
    except BaseException:
        withdraw(path, at="cache.ask.abandon")
        withdraw(path_of(store.layout.reservations, ask), at="cache.reservation.undo")
        raise


def _fits_at_all(store: Store, need: Need) -> None:
    capacity = store.capacity_bytes()
    if need.size_bytes <= capacity:
        return
    raise BundleTooLarge(
        f"{need.what} needs {format_memory(need.size_bytes)} and the cache in {store.layout.root} can hold "
        f"{format_memory(capacity)}; raise its limit, name a directory on a larger disk, or leave files out with "
        "exclude patterns"
    )


def _make_room(store: Store, ask: Mark, need: Need, over: Excess) -> bool:
    """Evict until `over` should be covered; False, with nothing evicted, if that cannot be."""
    if not sweep(store).is_nothing or _drop_left_staging(store):
        return True
    resident = resident_bundles(store.layout)
    held = {bundle for bundle in resident if holders(store, bundle)}
    if not _can_cover(resident, held, need, over):
        return False
    memory.turn_journal(store.layout)
    sizes = {bundle: manifest.size_bytes for bundle, manifest in resident.items()}
    recalled = memory.recall(store.layout, store.policy, capacity_bytes=store.capacity_bytes(), resident=sizes)
    freed_bytes = freed_files = 0
    left = dict(resident)
    any_left = False
    while freed_bytes < over.size_bytes or freed_files < over.files:
        victim = recalled.policy.evict(spared=held.__contains__)
        if victim is None:
            break
        if not evicting.evict(store, victim, why=f"room for {need.what}"):
            held.add(victim)
            recalled.policy.admit(
                victim, size_bytes=sizes[victim], refetch_seconds=memory.refetch_guess(sizes[victim], objects=1)
            )
            continue
        any_left = True
        freed = _only_in(victim, left, need)
        freed_bytes += sum(freed.values())
        freed_files += len(freed)
        del left[victim]
        events.note(
            store.layout,
            {"what": "evict", "at": store.clock.now(), "policy": store.policy, "bytes": sum(freed.values())},
        )
    memory.remember(store.layout, recalled)
    return any_left


def _only_in(bundle: str, resident: dict[str, Manifest], need: Need) -> dict[str, int]:
    """Digest → bytes of what would be freed if this bundle left and the others stayed."""
    own = {file.digest: file.size_bytes for file in resident[bundle].files}
    others = {file.digest for name, manifest in resident.items() if name != bundle for file in manifest.files}
    return {digest: size for digest, size in own.items() if digest not in others and digest not in need.shared}


def _can_cover(resident: dict[str, Manifest], held: set[str], need: Need, over: Excess) -> bool:
    kept = {file.digest for bundle in held for file in resident[bundle].files} | set(need.shared)
    loose = {
        file.digest: file.size_bytes
        for bundle, manifest in resident.items()
        if bundle not in held
        for file in manifest.files
        if file.digest not in kept
    }
    return sum(loose.values()) >= over.size_bytes and len(loose) >= over.files and bool(set(resident) - held)


def _drop_left_staging(store: Store) -> bool:
    """Give up what dead fetches left behind; what this one goes on with is its own by now."""
    dropped = False
    for path, mark in list(marks_in(store.layout.reservations)):
        if is_left(mark, path, store.sight):
            drop_staging(store.layout, mark.id)
            withdraw(path, at="cache.reservation.sweep")
            dropped = True
    return dropped
