"""Immutable views: a directory of hard links to blobs, published by one rename and never changed.

A view is an instance: it has a nonce in its name, and a name is never used twice. So whoever wants to evict one can be
stopped for an hour and still only ever takes away the view that it looked at.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.cache.bundles import Manifest, ManifestDamaged
from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.gateways import files

_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class View:
    """One published instance of a bundle."""

    id: str
    """`BUNDLE.NONCE`."""
    path: Path

    @property
    def bundle(self) -> str:
        """The bundle it is an instance of."""
        return self.id.partition(".")[0]

    @property
    def files(self) -> Path:
        """The directory that users read from."""
        return self.path / "files"

    def manifest(self) -> Manifest:
        """What is in it. Raises `ManifestDamaged`, also when it is gone."""
        try:
            return Manifest.from_bytes((self.path / "manifest.json").read_bytes(), bundle=self.bundle)
        except OSError as error:
            raise ManifestDamaged(f"view {self.id[:12]} has no manifest: {error.strerror}") from error

    def missing(self, manifest: Manifest) -> list[str]:
        """Paths that are not there with the size they must have: a view is ready when this is empty."""
        lost = []
        for file in manifest.files:
            try:
                size = (self.files / file.path).stat().st_size
            except OSError:
                size = -1
            if size != file.size_bytes:
                lost.append(file.path)
        return lost


def views_of(layout: Layout, bundle: str) -> list[View]:
    """Every instance of one bundle."""
    return [View(f"{bundle}.{nonce}", layout.views / bundle / nonce) for nonce in sorted(names(layout.views / bundle))]


def all_views(layout: Layout) -> Iterator[View]:
    """Every view there is."""
    for bundle in sorted(names(layout.views)):
        yield from views_of(layout, bundle)


def resident_bundles(layout: Layout) -> dict[str, Manifest]:
    """Bundles that have a view, with what is in them. One whose manifest is damaged is listed as empty."""
    found: dict[str, Manifest] = {}
    for view in all_views(layout):
        if not found.get(view.bundle, Manifest(())).files:
            try:
                found[view.bundle] = view.manifest()
            except ManifestDamaged:
                found[view.bundle] = Manifest(())
    return found


def link_blob(layout: Layout, digest: str, target: Path, *, size_bytes: int) -> bool:
    """Give a resident blob a name in a view that is being built; False if there is no such blob (any more), or it is
    not as long as it must be: then it is fetched, and replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    source = layout.blob(digest)
    try:
        files.link(source, target, at="cache.view.link")
    except FileNotFoundError:
        return False
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        # A file that occurs in tens of thousands of places (an empty one, mostly) has no more names to give.
        try:
            files.write(target, _content(source), at="cache.view.copy", mode=0o444)
        except FileNotFoundError:
            return False
    if target.stat().st_size == size_bytes:
        return True
    files.remove(target, at="cache.view.unlink_damaged")
    return False


def keep_blob(layout: Layout, staged: Path, digest: str, target: Path) -> None:
    """Make a staged file the blob `digest` and give it its name in the view that is being built.

    The view's name comes first: a blob that has a second name is nobody's garbage.
    """
    files.seal(staged, at="cache.blob.seal")
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        files.link(staged, target, at="cache.view.link_staged")
    blob = layout.blob(digest)
    if not blob.parent.is_dir():
        files.make_directory(blob.parent)
    for _ in range(100):
        try:
            files.link(staged, blob, at="cache.blob.link")
            break
        except FileExistsError:  # the same content is there already: use that, so that it is stored once
            spare = target.with_name(f".{target.name}.shared")
            if link_blob(layout, digest, spare, size_bytes=staged.stat().st_size):
                files.rename(spare, target, at="cache.view.share")
                break
            if blob.exists():  # damaged: whoever still reads it keeps what it has
                files.rename(_second_name(staged), blob, at="cache.blob.replace")
                break
        except OSError as error:
            if error.errno == errno.EMLINK:
                break
            raise
    files.sync_directory(blob.parent)


def publish_view(layout: Layout, building: Path, manifest: Manifest, nonce: str) -> View:
    """Make a finished directory a view: everything in it durable, then one rename."""
    files.write(building / "manifest.json", manifest.to_bytes(), at="cache.view.manifest", mode=0o444)
    for directory, _, _ in os.walk(building):
        files.sync_directory(Path(directory))
    view = View(f"{manifest.bundle}.{nonce}", layout.view(f"{manifest.bundle}.{nonce}"))
    for _ in range(100):
        files.make_directory(view.path.parent)
        try:
            files.rename(building, view.path, at="cache.view.publish")
            break
        except FileNotFoundError:
            if view.path.exists():
                break
            if not building.exists():
                raise
    return view


def _second_name(staged: Path) -> Path:
    second = staged.with_name(f"{staged.name}.blob")
    with suppress(FileExistsError):
        files.link(staged, second, at="cache.blob.second_name")
    return second


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
