"""Taking a bundle off the disk, so that a kill at any point leaves something that the next one finishes.

Tombstone, look for leases, move the view to the trash in one rename, then what nobody else names: blobs whose only
name is their own. Every step may be done twice and by anybody; only the rename needs the tombstone.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dsec_blocks.cache.bundles import ManifestDamaged, is_digest
from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.cache.store.marks import living, place, withdraw
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.views import View, views_of
from dsec_blocks.gateways import files


def evict(store: Store, bundle: str, *, why: str) -> bool:
    """Take every view of the bundle off the disk, and the blobs that only it used; False if somebody holds it."""
    gone = True
    for view in views_of(store.layout, bundle):
        gone = evict_view(store, view, why=why) and gone
    return gone


def evict_view(store: Store, view: View, *, why: str) -> bool:
    """Take one view off the disk; False if somebody holds it (then nothing has changed)."""
    layout = store.layout
    if living(layout.leases / view.id, store.sight):
        return False
    tombstone = place(layout.tombstones / view.id, store.mark(why), at="cache.tombstone.place")
    try:
        if living(layout.leases / view.id, store.sight):
            return False
        try:
            digests = [file.digest for file in view.manifest().files]
        except ManifestDamaged:
            digests = None
        trashed = layout.trash / uuid4().hex
        try:
            files.rename(view.path, trashed, at="cache.evict.view")
        except FileNotFoundError:
            if view.path.exists():
                raise
            return True  # another evictor was faster
        files.remove_tree(trashed, at="cache.evict.unlink_view")
        files.remove_empty(view.path.parent)
        drop_blobs(layout, unnamed_blobs(layout) if digests is None else digests)
    finally:
        withdraw(tombstone, at="cache.tombstone.remove")
    return True


def drop_blobs(layout: Layout, digests: Iterable[str]) -> None:
    """Remove those of the blobs that no view names."""
    for digest in set(digests):
        blob = layout.blob(digest)
        with suppress(FileNotFoundError):
            if blob.stat().st_nlink == 1:
                trashed = layout.trash / f"{digest}.{uuid4().hex}"
                files.rename(blob, trashed, at="cache.evict.blob")
                settle_blob(layout, trashed)


def settle_blob(layout: Layout, trashed: Path) -> None:
    """Finish with a blob in the trash: gone for good, or a blob again if a view was given its name meanwhile."""
    digest = trashed.name.partition(".")[0]
    with suppress(FileNotFoundError):
        if trashed.stat().st_nlink > 1:
            with suppress(FileExistsError):
                files.link(trashed, layout.blob(digest), at="cache.evict.restore")
        files.remove(trashed, at="cache.evict.unlink_blob")


def empty_trash(layout: Layout) -> int:
    """Finish whatever lies in the trash; returns how many things that were."""
    entries = names(layout.trash)
    for name in entries:
        path = layout.trash / name
        if is_digest(name.partition(".")[0]):
            settle_blob(layout, path)
        else:
            files.remove_tree(path, at="cache.trash.remove")
    return len(entries)


def unnamed_blobs(layout: Layout) -> list[str]:
    """Blobs that no view names."""
    found = []
    for part in names(layout.blobs):
        for digest in names(layout.blobs / part):
            with suppress(FileNotFoundError):
                if is_digest(digest) and layout.blob(digest).stat().st_nlink == 1:
                    found.append(digest)
    return found
