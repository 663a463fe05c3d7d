"""A Hugging Face hub (or one that speaks its API) as an origin: the tree of a revision, and the files it resolves to.

A file's version is the id that the tree gives it. That id is a hash of the content (SHA-256 for a large file, Git's
own for a small one), so the hub promises the content and the fetch holds it to that.
"""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from dsec_blocks.cache.errors import BundleMissing, OriginError, OriginRefused, UnknownOrigin
from dsec_blocks.cache.origins.asking import Answer, ask, asked_by, judged, patience, patiently
from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.objects import RemoteObject, safe_path, selected
from dsec_blocks.cache.origins.ranges import read_range

DEFAULT_ENDPOINT = "https://huggingface.co"
_ADDRESS = re.compile(
    r"hf://(?:(?P<kind>datasets|spaces|models)/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<below>.*))?"
)
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')


class HubOrigin:
    """`hf://owner/name[@revision][/folder or file]`, with `datasets/` or `spaces/` before the owner for those."""

    def __init__(self, *, endpoint: str, token: str | None, connections: Connections | None = None) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connections = connections or Connections()
        self._lock = threading.Lock()
        self._resolved: dict[str, str] = {}

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """Every file of the revision, or of one folder in it, or the one file that the address names."""
        _, _, _, below = split_hub(uri)
        with asked_by(self._connections, patience_seconds) as connections:
            try:
                items = list(self._files(connections, uri, below, patience_seconds))
            except BundleMissing:
                # The hub has trees of folders only: a file is in that of its folder.
                folder = below.rpartition("/")[0]
                found = self._files(connections, uri, folder, patience_seconds, deep=False) if below else ()
                items = [item for item in found if item.path == below.rpartition("/")[2]]
                if not items:
                    raise
        return selected(uri, items, include=include, exclude=exclude)

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """A ranged GET where the hub says the file is; an address that has ended is asked for again."""
        room = buffer if buffer is not None else memoryview(bytearray(min(length, 2**20)))
        for is_last in (False, True):
            url = self._resolve(item)
            headers = self._headers if urlsplit(url).netloc == urlsplit(item.uri).netloc else {}
            try:
                yield from read_range(
                    self._connections, url, item, start=start, length=length, buffer=room, headers=headers
                )
                return
            except OriginRefused:
                if is_last or url == item.uri:
                    raise
                with self._lock:
                    self._resolved.pop(item.uri, None)

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """The tree's id is the promise already."""

    def latency_seconds(self) -> float | None:
        """What the connections have seen."""
        return self._connections.latency_seconds

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def _files(
        self, connections: Connections, uri: str, folder: str, patience_seconds: float | None, *, deep: bool = True
    ) -> Iterator[RemoteObject]:
        kind, repo, revision, _ = split_hub(uri)
        below = f"/{quote(folder)}" if folder else ""
        url = f"{self._endpoint}/api/{kind}/{repo}/tree/{quote(revision, safe='')}{below}?recursive={str(deep).lower()}"
        prefix = f"{'' if kind == 'models' else kind + '/'}{repo}/resolve/{quote(revision, safe='')}"
        for entry in self._pages(connections, uri, url, **patience(patience_seconds)):
            if entry.get("type") == "file":
                path = str(entry["path"])
                yield _item(f"{self._endpoint}/{prefix}/{quote(path)}", entry, path, folder)

    def _pages(self, connections: Connections, uri: str, url: str, **patience: float) -> Iterator[dict[str, Any]]:
        page: str | None = url
        while page is not None:
            answer = patiently(uri, partial(self._judged, connections, page, uri), **patience)
            try:
                entries = json.loads(answer.body)
                yield from entries
            except (ValueError, TypeError) as error:
                raise OriginError(f"{uri}: {page} did not answer with a file tree") from error
            following = _NEXT.search(answer.headers.get("link", ""))
            page = following[1] if following else None

    def _judged(self, connections: Connections, url: str, uri: str) -> Answer:
        return judged(ask(connections, url, self._headers), uri)

    def _resolve(self, item: RemoteObject) -> str:
        with self._lock:
            if item.uri in self._resolved:
                return self._resolved[item.uri]
        answer = judged(ask(self._connections, item.uri, self._headers, method="HEAD"), item.uri)
        with self._lock:
            self._resolved[item.uri] = answer.url
        return answer.url


def split_hub(uri: str) -> tuple[str, str, str, str]:
    """Kind, repository, revision and folder of an `hf://` address. Raises `UnknownOrigin`."""
    found = _ADDRESS.fullmatch(uri)
    if found is None:
        raise UnknownOrigin(f"{uri!r}: write hf://owner/name, hf://owner/name@revision or hf://datasets/owner/name")
    revision, below = unquote(found["revision"] or "main"), (found["below"] or "").strip("/")
    return found["kind"] or "models", found["repo"], revision, below


def _item(url: str, entry: dict[str, Any], path: str, below: str) -> RemoteObject:
    large = entry.get("lfs") or {}
    digest = f"sha256:{large['oid']}" if large.get("oid") else f"git-sha1:{entry['oid']}"
    return RemoteObject(
        uri=url,
        path=safe_path(path.removeprefix(f"{below}/") if below else path),
        size_bytes=int(large.get("size") or entry["size"]),
        version=f"oid:{large.get('oid') or entry['oid']}",
        digest=digest,
    )
