"""What this machine's nodes hold, said in the ledger so that placement can go where the data is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import Manifest
from dsec_blocks.cache.inventory import OnItsWay, on_its_way, part_here
from dsec_blocks.cache.store.refs import all_refs, read_listing
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.views import resident_bundles
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.inventories import CachedBundle
from dsec_blocks.model.content_sketch import Sketch, sketch_of

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
    """Every address that the cache knows, and how much of it is here: whole, shared with others, or so far."""
    resident = resident_bundles(store.layout)
    empty = Manifest(())
    newest = sorted(all_refs(store.layout).items(), key=lambda entry: -entry[1].checked_at)[:MOST_ADDRESSES]
    found = {}
    checked_at = {}
    for key, ref in newest:
        manifest = resident.get(ref.bundle, empty)
        here = ref.size_bytes if manifest.files else min(ref.size_bytes, part_here(store, key, ref))
        address = str(ref.address)
        checked_at[address] = ref.checked_at
        found[address] = CachedBundle(
            address=address,
            digest=ref.bundle,
            bytes_total=ref.size_bytes,
            bytes_resident=here,
            checked_at=ref.checked_at,
            sketch=() if ref.address.is_pinned else _sketch(store, key, manifest),
        )
    for address, coming in on_its_way(store).items():
        if coming.since < checked_at.get(address, 0.0):
            continue  # the origin was asked again since, so what the address stands for is known better
        found[address] = CachedBundle(
            address=address, digest="", bytes_total=coming.total_bytes, bytes_resident=_fetched(coming)
        )
    return list(found.values())


def _sketch(store: Store, key: str, manifest: Manifest) -> Sketch:
    """What the address stands for, so that a node with other content of it can be told how much of that is of use."""
    if manifest.files:
        return sketch_of({file.digest: file.size_bytes for file in manifest.files}, is_here=lambda digest: True)
    listed = {digest: size for _, size, digest in read_listing(store.layout, key).values()}
    return sketch_of(listed, is_here=lambda digest: store.layout.blob(digest).is_file())


def _trace(store: Store) -> object:
    """Equal means that nothing has changed; cheap, because it is asked every few seconds."""
    layout = store.layout
    coming = {address: (one.total_bytes, _fetched(one)) for address, one in on_its_way(store).items()}
    found = []
    for directory in (layout.refs, layout.views):
        try:
            found.append(directory.stat().st_mtime_ns)
        except FileNotFoundError:
            found.append(0)
    return found, coming


def _fetched(coming: OnItsWay) -> int:
    return coming.total_bytes * min(_STEPS, coming.here_bytes * _STEPS // coming.total_bytes) // _STEPS
