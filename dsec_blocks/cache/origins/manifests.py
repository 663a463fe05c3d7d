"""A manifest as an origin: a file that names every object of a bundle with its size and digest.

    {"files": [{"path": "model.safetensors", "size": 123, "blake3": "…64 hex…"}, …]}

or the list alone; `sha256` may stand for `blake3`. Paths are relative to the manifest. What it promises is what is
kept: an object's version is its digest, not what its server says, and content that differs is refused.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from dsec_blocks.cache.errors import BadManifest
from dsec_blocks.cache.origins.asking import patience, patiently
from dsec_blocks.cache.origins.objects import Origin, RemoteObject, safe_path, selected

PREFIX = "manifest+"
_LARGEST_BYTES = 64 * 2**20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ALGORITHMS = ("blake3", "sha256")


class ManifestOrigin:
    """`manifest+s3://bucket/model/manifest.json`, and the same before `hf://`, `https://` and `file://`."""

    def __init__(self, inner: Origin) -> None:
        self._inner = inner

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """What the manifest names. Raises `BadManifest` for one that cannot be followed."""
        found = self._inner.list(uri.removeprefix(PREFIX), patience_seconds=patience_seconds)
        if len(found) != 1 or found[0].path != urlsplit(uri).path.rpartition("/")[2]:
            raise BadManifest(f"{uri}: that is a folder; name the manifest in it, for example {uri}/manifest.json")
        (manifest,) = found
        if manifest.size_bytes > _LARGEST_BYTES:
            raise BadManifest(f"{uri}: {manifest.size_bytes} bytes are too many for a manifest (at most 64 MiB)")

        def content() -> bytes:
            pieces = self._inner.read(manifest, start=0, length=manifest.size_bytes)
            return b"".join(bytes(piece) for piece in pieces)

        raw = patiently(uri, content, **patience(patience_seconds)) if manifest.size_bytes else b""
        return selected(uri, _named(uri, manifest.uri, raw), include=include, exclude=exclude)

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """The bytes as they are now: whether they are the right ones the digest tells."""
        return self._inner.read(replace(item, version=None), start=start, length=length, buffer=buffer)

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """The manifest's digest is the promise already."""

    def latency_seconds(self) -> float | None:
        """That of the origin behind it."""
        return self._inner.latency_seconds()

    def close(self) -> None:
        """Close the origin behind it."""
        self._inner.close()


def _named(uri: str, manifest: str, raw: bytes) -> list[RemoteObject]:
    try:
        told = json.loads(raw)
    except ValueError as error:
        raise BadManifest(f"{uri} is no manifest: it is not JSON ({error})") from error
    entries = told.get("files") if isinstance(told, dict) else told
    if not isinstance(entries, list) or not entries:
        raise BadManifest(f'{uri} is no manifest: write {{"files": [{{"path": …, "size": …, "blake3": …}}, …]}}')
    return [_item(uri, manifest, entry) for entry in entries]


def _item(uri: str, manifest: str, entry: Any) -> RemoteObject:
    fields = entry if isinstance(entry, dict) else {}
    path, size = fields.get("path"), fields.get("size")
    promised = next((f"{name}:{fields[name]}" for name in _ALGORITHMS if name in fields), "")
    if not isinstance(path, str) or type(size) is not int or size < 0:
        raise BadManifest(f"{uri}: {_short(entry)} has no path, or no size in bytes")
    if not _DIGEST.fullmatch(promised.partition(":")[2]):
        raise BadManifest(f"{uri}: {path} has no digest; give blake3 or sha256 as 64 lower-case hexadecimal digits")
    return RemoteObject(
        uri=_beside(manifest, safe_path(path)), path=path, size_bytes=size, version=promised, digest=promised
    )


def _beside(manifest: str, path: str) -> str:
    parts = urlsplit(manifest)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{quote(path)}", "", ""))


def _short(entry: Any) -> str:
    text = json.dumps(entry)
    return text if len(text) <= 60 else f"{text[:60]}…"
