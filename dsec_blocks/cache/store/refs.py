"""Refs: which bundle an address stood for when it was last compared with its origin.

A ref is replaced whole or not at all, and only after everything that it names is there; one that would not change is
not written. The origin's listing (versions by path) lies beside it, for the next comparison.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.origins.objects import RemoteObject
from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.gateways import files

MOST_SEEN = 64
"""Identities that a ref remembers; one that is forgotten asks the origin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """What an address stands for."""

    uri: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    bundle: str
    size_bytes: int
    files: int
    checked_at: float
    """When the origin was last seen to have this content (seconds since the epoch)."""
    fetched_at: float
    seen_by: Mapping[str, float] = field(default_factory=dict)
    """Who was let in by the origin, and when: a copy that is here is nobody's right to read it."""
    unreachable_at: float | None = None
    """When the origin was last asked in vain, if that was after the last answer."""

    @property
    def address(self) -> BundleAddress:
        """The address of the ref."""
        return BundleAddress(uri=self.uri, include=self.include, exclude=self.exclude)

    def compared(self, by: str, *, at: float) -> "Ref":
        """The same after `by` has asked the origin."""
        newest = sorted({**self.seen_by, by: at}.items(), key=lambda seen: seen[1])[-MOST_SEEN:]
        return replace(self, checked_at=at, seen_by=dict(newest), unreachable_at=None)


def read_ref(layout: Layout, key: str) -> Ref | None:
    """The ref of an address, or None if there is none that can be read."""
    return _read(layout.refs / f"{key}.json")


def all_refs(layout: Layout) -> dict[str, Ref]:
    """Every ref, by the key of its address."""
    found = {name.removesuffix(".json"): _read(layout.refs / name) for name in names(layout.refs)}
    return {key: ref for key, ref in found.items() if ref is not None}


def write_ref(layout: Layout, key: str, ref: Ref) -> None:
    """Make `ref` what the address stands for."""
    raw = json.dumps(asdict(ref), sort_keys=True).encode()
    path = layout.refs / f"{key}.json"
    try:
        if path.read_bytes() == raw:
            return
    except OSError:
        pass
    files.write(path, raw, at="cache.ref.write")


def remove_ref(layout: Layout, key: str) -> None:
    """The address stands for nothing any more."""
    files.remove(layout.refs / f"{key}.json", at="cache.ref.remove")
    files.remove(layout.listings / f"{key}.json", at="cache.listing.remove")


Listed = Mapping[str, tuple[str | None, int, str]]
"""Path → version at the origin, bytes, digest."""


def read_listing(layout: Layout, key: str) -> Listed:
    """The listing that the ref was made from; empty if there is none that can be read."""
    try:
        told = json.loads((layout.listings / f"{key}.json").read_bytes())
        return {path: (version, int(size), str(digest)) for path, (version, size, digest) in told.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_listing(layout: Layout, key: str, items: Sequence[RemoteObject], digests: Mapping[str, str]) -> None:
    """Keep what the origin said, with the digests that were found."""
    told = {item.path: [item.version, item.size_bytes, digests[item.path]] for item in items}
    raw = json.dumps(told, sort_keys=True).encode()
    path = layout.listings / f"{key}.json"
    try:
        if path.read_bytes() == raw:
            return
    except OSError:
        pass
    files.write(path, raw, at="cache.listing.write")


Known = Mapping[tuple[str, str | None, int], str]
"""(path, version at the origin, bytes) → digest."""


def known_digests(layout: Layout, uri: str) -> Known:
    """What is known of the objects below `uri` from every listing of it, whichever patterns it was asked with."""
    return {
        (path, version, size_bytes): digest
        for key, ref in all_refs(layout).items()
        if ref.uri == uri
        for path, (version, size_bytes, digest) in read_listing(layout, key).items()
        if version is not None
    }


def is_unchanged(listed: Listed, items: Sequence[RemoteObject]) -> bool:
    """Whether the origin still says what it said. An object without a version may have changed."""
    return len(listed) == len(items) and all(_is_unchanged(listed, item) for item in items)


def _is_unchanged(listed: Listed, item: RemoteObject) -> bool:
    version, size_bytes, _ = listed.get(item.path, (None, -1, ""))
    return item.version is not None and (version, size_bytes) == (item.version, item.size_bytes)


def _read(path: Path) -> Ref | None:
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        return Ref(**{**told, "include": tuple(told["include"]), "exclude": tuple(told["exclude"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
