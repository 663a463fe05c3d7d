"""What must hold in a cache, read from the disk and written nowhere."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from dsec_blocks.cache.bundles import ManifestDamaged, is_digest
from dsec_blocks.cache.store import evicting
from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.cache.store.marks import marks_in
from dsec_blocks.cache.store.refs import all_refs
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import is_left, usage
from dsec_blocks.cache.store.views import View, all_views
from dsec_blocks.gateways import files
from dsec_blocks.model.units import format_memory


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that does not hold."""

    rule: str
    object: str
    text: str


def check(store: Store) -> list[Violation]:
    """Every rule that does not hold now. What living processes are in the middle of is no violation."""
    if not store.layout.exists:
        return []
    return [*_limit(store), *_views(store), *_refs(store), *_marks(store), *_leftovers(store)]


def verify(layout: Layout, bundle: str | None = None) -> Iterator[tuple[str, str, bool]]:
    """Hash every file of a bundle (or of all): view, path, and whether it is what its manifest says."""
    for view in all_views(layout):
        if bundle is not None and view.bundle != bundle:
            continue
        try:
            manifest = view.manifest()
        except ManifestDamaged:
            yield view.id, "manifest.json", False
            continue
        for file in manifest.files:
            yield view.id, file.path, _hash(view.files / file.path) == file.digest


def discard_damaged(store: Store, view_id: str, paths: list[str]) -> bool:
    """Take a damaged view and its damaged blobs away, so that the next acquire fetches them again.

    False if somebody reads the view: its blobs are taken away all the same, and its files stay as they are.
    """
    bundle, _, _ = view_id.partition(".")
    view = View(view_id, store.layout.view(view_id))
    damaged: list[str] = []
    with suppress(ManifestDamaged):
        damaged = [file.digest for file in view.manifest().files if file.path in paths]
    for digest in damaged:
        with suppress(FileNotFoundError):
            if _hash(store.layout.blob(digest)) != digest:
                files.remove(store.layout.blob(digest), at="cache.verify.discard")
    return evicting.evict_view(store, view, why=f"bundle {bundle[:12]} is damaged")


def _limit(store: Store) -> Iterator[Violation]:
    limit = store.limits.limit_bytes
    used = usage(store.layout, store.sight)
    if limit is not None and used.used_bytes > limit:
        yield Violation(
            "limit",
            str(store.layout.root),
            f"{format_memory(used.used_bytes)} in use, the limit is {format_memory(limit)}",
        )


def _views(store: Store) -> Iterator[Violation]:
    for view in all_views(store.layout):
        if any(marks_in(store.layout.tombstones / view.id)):
            continue
        try:
            manifest = view.manifest()
        except ManifestDamaged as error:
            yield Violation("view", view.id, str(error))
            continue
        for path in view.missing(manifest):
            yield Violation("view", view.id, f"{path} is not there, or not as long as the manifest says")
        for file in manifest.files:
            with suppress(FileNotFoundError):
                if stat.S_IMODE((view.files / file.path).stat().st_mode) & 0o222:
                    yield Violation("read-only", view.id, f"{file.path} can be written")


def _refs(store: Store) -> Iterator[Violation]:
    for name in names(store.layout.refs):
        if name.removesuffix(".json") not in all_refs(store.layout):
            yield Violation("ref", name, "it cannot be read")


def _marks(store: Store) -> Iterator[Violation]:
    for kind in ("leases", "tombstones"):
        root = store.layout.root / kind
        for name in names(root):
            for path, mark in marks_in(root / name):
                if store.sight.is_dead(mark, path):
                    yield Violation(kind[:-1], name, f"its owner {mark.who} is dead; dsec cache gc takes it away")
                elif kind == "leases" and mark.owner is None and not store.layout.view(name).exists():
                    yield Violation("pin", name, "it pins a bundle that is not there")
    for path, mark in marks_in(store.layout.asks):
        if store.sight.is_dead(mark, path):
            yield Violation("ask", mark.id, f"its owner {mark.who} is dead; dsec cache gc takes it away")


def _leftovers(store: Store) -> Iterator[Violation]:
    layout = store.layout
    present = names(layout.staging)
    known = {mark.id for directory in (layout.asks, layout.reservations) for _, mark in marks_in(directory)}
    for name in present:
        if name not in known:
            yield Violation("staging", name, "nobody has reserved it; dsec cache gc takes it away")
    for path, mark in marks_in(layout.reservations):
        if is_left(mark, path, store.sight) and not (layout.staging / mark.id / "data").is_dir():
            yield Violation("reservation", mark.id, "its fetch is dead and left nothing to resume")
    if any(names(layout.tombstones / name) for name in names(layout.tombstones)):
        return  # somebody is evicting: what is on its way out is no violation
    for name in names(layout.trash):
        yield Violation("trash", name, "nobody is removing it; dsec cache gc does")
    for part in names(layout.blobs):
        for name in names(layout.blobs / part):
            if not is_digest(name) or name[:2] != part:
                yield Violation("blob", name, "it is not named by a digest")
    for digest in evicting.unnamed_blobs(layout):
        yield Violation("blob", digest, "no view names it; dsec cache gc takes it away")


def _hash(path: Path) -> str | None:
    hasher = blake3()
    try:
        with path.open("rb") as file:
            while chunk := file.read(4 * 2**20):
                hasher.update(chunk)
    except OSError:
        return None
    return hasher.hexdigest()
