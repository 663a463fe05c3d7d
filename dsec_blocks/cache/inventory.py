"""What is in a node's cache, for people, for the node's agent and for placement."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dsec_blocks.cache.bundles import BundleAddress, Manifest, ManifestDamaged
from dsec_blocks.cache.errors import BundleMissing, CacheError
from dsec_blocks.cache.store.leases import holders
from dsec_blocks.cache.store.marks import Mark
from dsec_blocks.cache.store.refs import Ref, all_refs, read_ref
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.views import resident_bundles, views_of


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


def resident_bytes_of(
    store: Store, uri: str, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[int, int] | None:
    """Bytes of the bundle at `uri` that are here, and in all, by what was last known of it; None if nothing is."""
    ref = read_ref(store.layout, BundleAddress.of(uri, include=include, exclude=exclude).key)
    if ref is None:
        return None
    return (ref.size_bytes if views_of(store.layout, ref.bundle) else 0), ref.size_bytes


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
