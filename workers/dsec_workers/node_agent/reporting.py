"""What this machine's nodes hold, said in the ledger so that placement can go where the data is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import Manifest
from dsec_blocks.cache.store.layout import names
from dsec_blocks.cache.store.marks import marks_in
from dsec_blocks.cache.store.refs import all_refs
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import written_bytes
from dsec_blocks.cache.store.views import resident_bundles
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.inventories import CachedBundle

MOST_ADDRESSES = 1000
_STEPS = 8
"""A fetch under way is reported in eighths, so that it is not written again with every byte."""


@dataclass(slots=True)
class Reporting:
    """One report after another. One thread steps."""

    ledger: Ledger
    cache: Cache
    nodes: Sequence[str]
    _seen: object = field(default=None, init=False)
    _bundles: list[CachedBundle] = field(default_factory=list, init=False)

    def step(self, *, bandwidth_bytes_per_s: float | None) -> None:
        """Say what is here; without news the ledger is hardly asked. Raises `LedgerError`."""
        store = self.cache.store
        seen = _trace(store)
        if seen != self._seen:
            self._bundles = held(store)
            self._seen = seen
        for node in self.nodes:
            self.ledger.report_inventory(
                node,
                at=store.clock.now(),
                bandwidth_bytes_per_s=bandwidth_bytes_per_s,
                bundles=self._bundles,
            )


def held(store: Store) -> list[CachedBundle]:
    """Every address that the cache knows, and how much of it is here: resident, or fetched so far."""
    resident = resident_bundles(store.layout)
    empty = Manifest(())
    refs = sorted(all_refs(store.layout).values(), key=lambda ref: -ref.checked_at)[:MOST_ADDRESSES]
    found = {
        str(ref.address): CachedBundle(
            address=str(ref.address),
            digest=ref.bundle,
            bytes_total=ref.size_bytes,
            bytes_resident=ref.size_bytes if resident.get(ref.bundle, empty).files else 0,
        )
        for ref in refs
    }
    for _, mark in marks_in(store.layout.reservations):
        address = str(mark.fields.get("uri", ""))
        total = max(int(mark.fields.get("bytes", 0)), 1)
        if address and address not in found:
            eighths = min(_STEPS, written_bytes(store.layout, mark.id) * _STEPS // total)
            here = total * eighths // _STEPS
            found[address] = CachedBundle(address=address, digest="", bytes_total=total, bytes_resident=here)
    return list(found.values())


def _trace(store: Store) -> object:
    """Equal means that nothing has changed; cheap, because it is asked every few seconds."""
    layout = store.layout
    if names(layout.reservations) or names(layout.asks):
        return object()
    found = []
    for directory in (layout.refs, layout.views):
        try:
            found.append(directory.stat().st_mtime_ns)
        except FileNotFoundError:
            found.append(0)
    return found
