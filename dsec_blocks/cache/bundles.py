"""What a bundle is: an address somebody asks for, and a manifest that says exactly what is in it.

A bundle is one model or one data set. Its manifest names every file by path, size and blake3 digest; the digest of the
manifest in canonical form is the bundle's own name, so the same content has the same name wherever it came from.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from dsec_blocks.cache.errors import CacheError, UnknownOrigin, UnsafePath
from dsec_blocks.cache.origins.objects import safe_path

SCHEMA = 1
DIGEST_LENGTH = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PATTERNS = re.compile(r"(?P<uri>.+) \((?P<patterns>(include|exclude) \S+(; exclude \S+)?)\)")
_PINNED = (
    re.compile(r"(manifest\+)?hf://([^/@]+/)?[^/@]+/[^/@]+@[0-9a-f]{40}(/.*)?"),  # a commit, of all or of one folder
    re.compile(r"s3://[^?]+\?versionId=[^&]+"),
)


class ManifestDamaged(CacheError):
    """A manifest that is not what its name says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleAddress:
    """What was asked for: where, and which of the files there."""

    uri: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, uri: str, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> "BundleAddress":
        """The address in its one spelling. Raises `UnknownOrigin` for an empty one."""
        text = uri.strip()
        if text.startswith("/"):
            text = f"file://{text}"
        scheme, separator, rest = text.partition("://")
        if not separator or not rest.strip("/"):
            raise UnknownOrigin(f"{uri!r} is no address; write for example s3://bucket/models/llama or file:///data/x")
        if any(part == ".." for part in rest.split("/")):
            raise UnsafePath(f"{uri!r} has '..' in it; write the address without")
        return cls(
            uri=f"{scheme.lower()}://{rest.rstrip('/')}",
            include=tuple(sorted(set(include))),
            exclude=tuple(sorted(set(exclude))),
        )

    @classmethod
    def parse(cls, text: str) -> "BundleAddress":
        """What `str` wrote, or a plain address. Raises `UnknownOrigin` or `UnsafePath`."""
        found = _PATTERNS.fullmatch(text.strip())
        if found is None:
            return cls.of(text)
        told = dict(part.split(" ", 1) for part in found["patterns"].split("; "))
        include, exclude = (tuple(told[word].split(",")) if word in told else () for word in ("include", "exclude"))
        return cls.of(found["uri"], include=include, exclude=exclude)

    @property
    def key(self) -> str:
        """A name for the address that is safe as a file's name."""
        return blake3(_canonical([self.uri, self.include, self.exclude])).hexdigest()[:32]

    @property
    def is_pinned(self) -> bool:
        """Whether the address itself names a version that cannot change."""
        return any(pinned.fullmatch(self.uri) for pinned in _PINNED)

    def __str__(self) -> str:
        patterns = [f"include {','.join(self.include)}"] if self.include else []
        patterns += [f"exclude {','.join(self.exclude)}"] if self.exclude else []
        return f"{self.uri} ({'; '.join(patterns)})" if patterns else self.uri


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of a bundle."""

    path: str
    size_bytes: int
    digest: str
    """blake3, hexadecimal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything in a bundle, by path."""

    files: tuple[ManifestFile, ...]

    @classmethod
    def of(cls, files: Iterable[ManifestFile]) -> "Manifest":
        """A manifest whose paths can all exist in one directory. Raises `UnsafePath` if they cannot."""
        ordered = tuple(sorted(files, key=lambda file: file.path))
        check_paths([file.path for file in ordered])
        return cls(ordered)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files; content that occurs twice is counted once."""
        return sum({file.digest: file.size_bytes for file in self.files}.values())

    @property
    def bundle(self) -> str:
        """The bundle's name: the digest of the canonical form."""
        return blake3(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return _canonical(
            {"schema": SCHEMA, "files": [[file.path, file.size_bytes, file.digest] for file in self.files]}
        )

    @classmethod
    def from_bytes(cls, raw: bytes, *, bundle: str | None = None) -> "Manifest":
        """What `to_bytes` wrote. Raises `ManifestDamaged`, also when it is not the manifest of `bundle`."""
        if bundle is not None and blake3(raw).hexdigest() != bundle:
            raise ManifestDamaged(
                f"the manifest of bundle {bundle[:12]} is not what its name says; it is fetched again"
            )
        try:
            fields = json.loads(raw)
            files = tuple(ManifestFile(str(path), int(size), str(digest)) for path, size, digest in fields["files"])
        except (ValueError, TypeError, KeyError) as error:
            raise ManifestDamaged(f"a manifest cannot be read: {error}") from error
        return cls.of(files)


def check_paths(paths: Sequence[str]) -> None:
    """Nothing to say if all paths can be files below one directory. Raises `UnsafePath` naming one that cannot."""
    known = set()
    for path in paths:
        safe_path(path)
        if path in known:
            raise UnsafePath(f"{path!r} is in the bundle twice")
        known.add(path)
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts)):
            parent = "/".join(parts[:end])
            if parent in known:
                raise UnsafePath(f"{parent!r} would be both a file and a directory (of {path!r}); exclude one of them")


def is_digest(text: str) -> bool:
    """Whether `text` is a blake3 digest in hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def bare_digest(text: str | None) -> str | None:
    """The hexadecimal part of `blake3:…`, or None when it names no blake3 digest."""
    if text is None:
        return None
    bare = text.removeprefix("blake3:")
    return bare if is_digest(bare) else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
