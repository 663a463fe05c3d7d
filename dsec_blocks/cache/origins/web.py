"""One file at an HTTP(S) address as an origin. HTTP has no listing, so a bundle here is one file."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from dsec_blocks.cache.errors import OriginError, UnknownOrigin
from dsec_blocks.cache.origins.asking import Answer, ask, asked_by, judged, patience, patiently
from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.objects import RemoteObject, safe_path, selected
from dsec_blocks.cache.origins.ranges import read_range


class WebOrigin:
    """`https://host/path/file`."""

    def __init__(self, headers: Mapping[str, str] | None = None, *, connections: Connections | None = None) -> None:
        self._headers = dict(headers or {})
        self._connections = connections or Connections()
        self._final: dict[str, str] = {}

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """The one file, with what the server says of its size and version."""
        name = unquote(urlsplit(uri).path).rpartition("/")[2]
        if not name:
            raise UnknownOrigin(f"{uri}: HTTP cannot list a folder; name a file, or use s3://, hf:// or a path")
        with asked_by(self._connections, patience_seconds) as connections:
            answer = patiently(uri, lambda: self._described(connections, uri), **patience(patience_seconds))
        item = RemoteObject(uri=uri, path=safe_path(name), size_bytes=_size(answer, uri), version=_version(answer))
        self._final[uri] = answer.url
        return selected(uri, [item], include=include, exclude=exclude)

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """A ranged GET, at the address where the redirects of the listing ended."""
        url = self._final.get(item.uri, item.uri)
        room = buffer if buffer is not None else memoryview(bytearray(min(length, 2**20)))
        headers = self._headers if urlsplit(url).netloc == urlsplit(item.uri).netloc else {}
        yield from read_range(self._connections, url, item, start=start, length=length, buffer=room, headers=headers)

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """HTTP has none."""

    def latency_seconds(self) -> float | None:
        """What the connections have seen."""
        return self._connections.latency_seconds

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def _described(self, connections: Connections, uri: str) -> Answer:
        answer = ask(connections, uri, self._headers, method="HEAD")
        if answer.status in (403, 404, 405, 501) or (answer.status == 200 and "content-length" not in answer.headers):
            # Some servers, and most signed addresses, answer GET only.
            answer = ask(connections, uri, {**self._headers, "Range": "bytes=0-0"})
        return judged(answer, uri)


def _size(answer: Answer, uri: str) -> int:
    _, _, total = answer.headers.get("content-range", "").partition("/")
    text = total if answer.status == 206 else answer.headers.get("content-length", "")
    if not text.isdigit():
        raise OriginError(f"{uri}: the server does not say how large it is, so it cannot be fetched safely")
    return int(text)


def _version(answer: Answer) -> str | None:
    if etag := answer.headers.get("etag"):
        return etag
    modified = answer.headers.get("last-modified")
    return f"modified:{modified}" if modified else None
