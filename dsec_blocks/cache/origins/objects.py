"""What every origin speaks of: objects with a version, listed before they are fetched and after, read by ranges."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from dsec_blocks.cache.errors import BundleMissing, OriginChanged, UnsafePath


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """One object at an origin. `path` is relative to the bundle and safe to join to a directory.

    `version` is opaque (an ETag, a commit, a modification time): equal means the same content, nothing else is known.
    `digest` is `blake3:…`, `sha256:…` or `git-sha1:…` where a manifest or a hub already promises the content.
    """

    uri: str
    path: str
    size_bytes: int
    version: str | None
    digest: str | None = None
    has_checksum: bool = False
    """Whether the origin keeps a checksum of the whole object: see `Origin.stored_checksum`."""


class Origin(Protocol):
    """A place to fetch from. Safe to share between threads; a forked child opens its own connections."""

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """The objects of the bundle at `uri`, by path.

        `patience_seconds`: how long an origin that does not answer is asked again; None: as long as origins are.

        Raises `BundleMissing`, `OriginRefused`, `OriginUnreachable` or `UnsafePath`.
        """

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """The bytes `[start, start + length)` of exactly the listed version, piece by piece.

        Pieces lie in `buffer` (or in one of the origin's own): a piece is valid until the next one is asked for. A
        connection that breaks raises `OSError`, and what was yielded before it is good. It tries once: retries are
        the caller's. Raises `OriginChanged` when the object is no longer the listed version, and `OriginRefused`.
        """

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """`crc64nvme:BASE64` of the whole object, where the origin has it; asked only if `item.has_checksum`."""

    def latency_seconds(self) -> float | None:
        """The shortest time seen between a question and the beginning of its answer; None before the first."""

    def close(self) -> None:
        """Close idle connections; the origin opens new ones when it is used again."""


def safe_path(path: str) -> str:
    """`path` itself if it stays below the directory it is joined to. Raises `UnsafePath`."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or any(ord(letter) < 32 for letter in path):
        raise UnsafePath(f"{path!r} is not a path inside a bundle: it must be relative, without '..' or empty parts")
    if any(len(part.encode()) > 255 for part in parts):
        raise UnsafePath(f"{path!r} has a name of more than 255 bytes, which no file system takes")
    return path


def wanted(path: str, *, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the patterns let `path` in: any of `include` (none: all), and none of `exclude`.

    A pattern without a slash is compared with the file's name as well, so `*.safetensors` means at any depth.
    """
    name = path.rpartition("/")[2]

    def fits(pattern: str) -> bool:
        return fnmatchcase(path, pattern) or ("/" not in pattern and fnmatchcase(name, pattern))

    return (not include or any(map(fits, include))) and not any(map(fits, exclude))


def selected(
    uri: str, items: Iterable[RemoteObject], *, include: Sequence[str], exclude: Sequence[str]
) -> tuple[RemoteObject, ...]:
    """The items that the patterns let in, by path. Raises `BundleMissing` if that leaves none."""
    everything = sorted(items, key=lambda item: item.path)
    kept = tuple(item for item in everything if wanted(item.path, include=include, exclude=exclude))
    if not everything:
        raise BundleMissing(f"there is nothing at {uri}; look at the address")
    if not kept:
        raise BundleMissing(
            f"{uri} has {len(everything)} objects and the patterns leave none of them "
            f"(include {list(include)}, exclude {list(exclude)})"
        )
    return kept


def same_listing(uri: str, before: Sequence[RemoteObject], after: Sequence[RemoteObject]) -> None:
    """Nothing to say if both listings are equal. Raises `OriginChanged` naming the first difference."""
    was = {item.path: item for item in before}
    now = {item.path: item for item in after}
    for path in sorted(was.keys() | now.keys()):
        if path not in now:
            difference = f"{path} was removed"
        elif path not in was:
            difference = f"{path} was added"
        elif (was[path].size_bytes, was[path].version) != (now[path].size_bytes, now[path].version):
            difference = f"{path} was overwritten"
        else:
            continue
        raise OriginChanged(f"{uri} changed while it was fetched ({difference}); nothing was published, fetch it again")
