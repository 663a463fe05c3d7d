"""What the answer to one ranged GET means: good bytes, a reason to try again, or a clear end.

Every range names the version it wants (`If-Match`) and every answer is compared with the listing, because not every
server honours the condition: a proxy may answer 200 with an error page, 206 with another range, or yesterday's file.
"""

import re
from collections.abc import Iterator, Mapping
from http.client import HTTPResponse

from dsec_blocks.cache.errors import OriginChanged, OriginError, OriginRefused
from dsec_blocks.cache.origins.connections import Connections, read_body
from dsec_blocks.cache.origins.objects import RemoteObject

TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class OriginBusy(OSError):
    """The origin asks to be left alone for a while; `retry_after` is in seconds, 0 when it does not say."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RangesIgnored(OSError):
    """The server answers a Range with the whole object: it has to be read as one stream."""


def read_range(
    connections: Connections,
    url: str,
    item: RemoteObject,
    *,
    start: int,
    length: int,
    buffer: memoryview,
    headers: Mapping[str, str],
) -> Iterator[memoryview]:
    """The bytes of one range. Raises what `Origin.read` raises, and `RangesIgnored`."""
    asked = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
    if item.version is not None and not is_weak(item.version):
        asked["If-Match"] = item.version
    with connections.request(url, asked) as answer:
        judge(answer.status, item.uri, retry_after=answer.headers.get("Retry-After", ""))
        _compare(answer, item, start=start, length=length)
        yield from read_body(answer, length, buffer)


def judge(status: int, name: str, *, retry_after: str = "") -> None:
    """Nothing to say about a 200 or 206. Raises what every other status means for the object called `name`."""
    if status in (200, 206):
        return
    if status in (401, 403):
        raise OriginRefused(
            f"{name}: the origin refuses these credentials (HTTP {status}); check the key and its right to read this"
        )
    if status in (404, 410):
        raise OriginChanged(f"{name} was removed while it was fetched (HTTP {status})")
    if status in (412, 416):
        raise OriginChanged(f"{name} was overwritten while it was fetched (HTTP {status}); fetch it again")
    if status in TRY_AGAIN:
        raise OriginBusy(f"{name}: HTTP {status}", float(retry_after) if retry_after.isdigit() else 0.0)
    raise OriginError(f"{name}: the origin answered HTTP {status}, which is no answer to a GET")


def is_weak(version: str) -> bool:
    """Whether a version is no strong ETag: such never goes into If-Match."""
    return not (version.startswith('"') and version.endswith('"'))


def _compare(answer: HTTPResponse, item: RemoteObject, *, start: int, length: int) -> None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding not in ("identity", "aws-chunked"):
        raise OriginError(f"{item.uri}: the server sends it {encoding}-encoded although it was asked not to")
    etag = answer.headers.get("ETag")
    if etag and item.version and _bare(item.version)[:1] == '"' and _bare(etag) != _bare(item.version):
        raise OriginChanged(f"{item.uri} was overwritten while it was fetched (another ETag); fetch it again")
    modified = answer.headers.get("Last-Modified")
    if modified and item.version and item.version.startswith("modified:") and item.version != f"modified:{modified}":
        raise OriginChanged(f"{item.uri} was overwritten while it was fetched (another Last-Modified); fetch it again")
    if answer.status == 200:
        if (start, length) != (0, item.size_bytes):
            raise RangesIgnored(f"{item.uri}: the server ignores ranges")
        if answer.length is not None and answer.length != item.size_bytes:
            raise ConnectionError(f"{item.uri}: {answer.length} bytes were sent instead of {item.size_bytes}")
        return
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or (int(found[1]), int(found[2])) != (start, start + length - 1):
        raise ConnectionError(f"{item.uri}: another range was sent than bytes {start}-{start + length - 1}")
    if found[3] != "*" and int(found[3]) != item.size_bytes:
        raise OriginChanged(f"{item.uri} has {found[3]} bytes now instead of {item.size_bytes}; fetch it again")


def _bare(etag: str) -> str:
    return etag.removeprefix("W/")
