"""What is in a node's cache, for people, for the node's agent and for placement."""

from collections import Counter
from dataclasses import dataclass

from dsec_blocks.cache.bundles import BundleAddress, Manifest, ManifestDamaged
from dsec_blocks.cache.errors import BundleMissing, CacheError
from dsec_blocks.cache.store.leases import holders
from dsec_blocks.cache.store.marks import Mark, marks_in
from dsec_blocks.cache.store.refs import Ref, all_refs, read_listing
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.views import resident_bundles, views_of
from dsec_blocks.cache.transfer.journal import arrived_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One bundle on this node."""

    bundle: str
    addresses: tuple[str, ...]
    """What it is known as: addresses whose last comparison with their origin gave this content."""
    size_bytes: int
    own_bytes: int
    """Of these, the bytes that no other resident bundle shares: what evicting it would free."""
    files: int
    is_whole: bool
    holders: tuple[Mark, ...]
    checked_at: float | None

    @property
    def is_pinned(self) -> bool:
        """Whether an operator pinned it."""
        return any(mark.owner is None for mark in self.holders)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnItsWay:
    """A bundle that is not whole yet."""

    since: float
    """When its fetch began."""
    total_bytes: int
    here_bytes: int
    """Fetched so far, and what was here before."""


def inventory(store: Store) -> list[Resident]:
    """Every resident bundle, largest first. One that is damaged hides no other."""
    refs: dict[str, list[Ref]] = {}
    for ref in all_refs(store.layout).values():
        refs.setdefault(ref.bundle, []).append(ref)
    manifests = resident_bundles(store.layout)
    shared = Counter(digest for manifest in manifests.values() for digest in {file.digest for file in manifest.files})
    found = [
        Resident(
            bundle=bundle,
            addresses=tuple(sorted(str(ref.address) for ref in refs.get(bundle, []))),
            size_bytes=manifest.size_bytes,
            own_bytes=sum(
                size
                for digest, size in {file.digest: file.size_bytes for file in manifest.files}.items()
                if shared[digest] == 1
            ),
            files=len(manifest.files),
            is_whole=_has_whole_view(store, bundle, manifest),
            holders=tuple(holders(store, bundle)),
            checked_at=max((ref.checked_at for ref in refs.get(bundle, [])), default=None),
        )
        for bundle, manifest in manifests.items()
    ]
    return sorted(found, key=lambda resident: (-resident.size_bytes, resident.bundle))


def part_here(store: Store, key: str, ref: Ref) -> int:
    """Bytes of a bundle without a view that are on the node all the same, because other bundles have them too."""
    listed = {digest: size for _, size, digest in read_listing(store.layout, key).values()}
    return sum(size for digest, size in listed.items() if store.layout.blob(digest).is_file())


def on_its_way(store: Store) -> dict[str, OnItsWay]:
    """What is being fetched, or was when its fetch ended early and can be gone on with: the newest, by address."""
    found: dict[str, OnItsWay] = {}
    for _, mark in marks_in(store.layout.reservations):
        address, total = str(mark.fields.get("uri", "")), int(mark.fields.get("total_bytes", 0))
        if address and total and (address not in found or found[address].since < mark.since):
            missing = int(mark.fields.get("missing_bytes", total))
            here = min(total, total - missing + arrived_bytes(store.layout.staging / mark.id / "data"))
            found[address] = OnItsWay(since=mark.since, total_bytes=total, here_bytes=here)
    return found


def find(store: Store, name: str) -> str:
    """The digest of the resident bundle that `name` (an address, or the beginning of a digest) stands for.

    Raises `BundleMissing` when there is none, `CacheError` when there are several.
    """
    resident = resident_bundles(store.layout)
    if "://" in name or name.startswith("/"):
        address = BundleAddress.of(name)
        matches = {ref.bundle for ref in all_refs(store.layout).values() if ref.uri == address.uri}
    else:
        matches = {bundle for bundle in resident if name and bundle.startswith(name)}
    matches &= set(resident)
    if not matches:
        raise BundleMissing(f"{name} is not in the cache {store.layout.root}; dsec cache ls shows what is")
    if len(matches) > 1:
        digests = ", ".join(sorted(bundle[:12] for bundle in matches))
        raise CacheError(f"{name} stands for several bundles ({digests}); name one by its digest")
    return matches.pop()


def _has_whole_view(store: Store, bundle: str, manifest: Manifest) -> bool:
    for view in views_of(store.layout, bundle):
        try:
            if manifest.files and not view.missing(view.manifest()):
                return True
        except ManifestDamaged:
            continue
    return False
