"""Any S3-compatible store as an origin.

Listing goes through the object-store gateway. Ranges go over our own connections to a presigned URL: signing is done
once an object instead of once a range, and the bytes land in the fetch's buffer without a copy between.
"""

import threading
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, quote, unquote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from dsec_blocks.cache.errors import BundleMissing, OriginError, OriginRefused, OriginUnreachable, UnknownOrigin
from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.objects import RemoteObject, safe_path, selected
from dsec_blocks.cache.origins.ranges import TRY_AGAIN, read_range
from dsec_blocks.gateways.inventory import Listed, crc64nvme, listing, signed_url
from dsec_blocks.gateways.objects import Bucket, Credentials, ObjectStoreError
from dsec_blocks.model.clock import Clock

SIGNED_SECONDS = 3600
_SIGN_AGAIN_SECONDS = 900.0
"""Well before a URL ends, because temporary credentials may end before it does."""


class S3Origin:
    """`s3://bucket/prefix` (a bundle is all below the prefix), `s3://bucket/key` (a bundle of one), or
    `s3://bucket/key?versionId=ID` (one version of it, which never changes).
    """

    def __init__(self, credentials: Credentials, *, clock: Clock, stall_seconds: float | None = None) -> None:
        self._credentials = credentials
        self._clock = clock
        self._connections = Connections(**({} if stall_seconds is None else {"stall_seconds": stall_seconds}))
        self._lock = threading.Lock()
        self._signed: dict[str, tuple[str, float]] = {}

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """Every object below the prefix; keys that end in a slash are folders of somebody's console, not data."""
        bucket, prefix, version_id = located(uri)
        store = Bucket(bucket, self._credentials, patience_seconds=patience_seconds)
        below = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        try:
            if version_id is not None:
                return selected(uri, [_one_version(store, uri)], include=include, exclude=exclude)
            found = [entry for entry in listing(store, below) if not entry.key.endswith("/")]
            if not found and prefix and not prefix.endswith("/"):
                single = [entry for entry in listing(store, prefix) if entry.key == prefix]
                return selected(
                    uri, [_item(bucket, e, e.key.rpartition("/")[2]) for e in single], include=include, exclude=exclude
                )
        except ObjectStoreError as error:
            raise explained(uri, error) from error
        items = [_item(bucket, entry, entry.key.removeprefix(below)) for entry in found]
        return selected(uri, items, include=include, exclude=exclude)

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """A ranged GET with If-Match."""
        room = buffer if buffer is not None else memoryview(bytearray(min(length, 2**20)))
        yield from read_range(
            self._connections, self._url(item), item, start=start, length=length, buffer=room, headers={}
        )

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """`crc64nvme:BASE64` of the whole object where the store keeps one."""
        bucket, key, version_id = located(item.uri)
        try:
            found = crc64nvme(Bucket(bucket, self._credentials), key, version_id=version_id)
        except ObjectStoreError:
            return None
        return f"crc64nvme:{found}" if found else None

    def latency_seconds(self) -> float | None:
        """What the connections have seen."""
        return self._connections.latency_seconds

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def _url(self, item: RemoteObject) -> str:
        now = self._clock.monotonic()
        with self._lock:
            url, until = self._signed.get(item.uri, ("", 0.0))
            if now < until:
                return url
        bucket, key, version_id = located(item.uri)
        store = Bucket(bucket, self._credentials)
        try:
            with self._lock:
                _ = store.client  # made once: connections that begin together would each make one
            url = signed_url(store, key, seconds=SIGNED_SECONDS, version_id=version_id)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise OriginRefused(f"{item.uri}: there are no S3 credentials here ({error})") from error
        with self._lock:
            self._signed[item.uri] = (url, now + _SIGN_AGAIN_SECONDS)
        return url


def split_s3(uri: str) -> tuple[str, str]:
    """Bucket and key (or prefix) of `s3://bucket/key`, percent-encoded where it must be. Raises `UnknownOrigin`."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise UnknownOrigin(f"{uri!r}: write s3://bucket/prefix ('?' and '#' in a key as %3F and %23)")
    return parts.netloc, unquote(parts.path.removeprefix("/"))


def located(uri: str) -> tuple[str, str, str | None]:
    """Bucket, key and version of `s3://bucket/key?versionId=ID`; without one what `split_s3` says.

    Raises `UnknownOrigin`.
    """
    plain, separator, query = uri.partition("?")
    if not separator:
        return *split_s3(uri), None
    asked = parse_qs(query)
    bucket, key = split_s3(plain)
    if list(asked) != ["versionId"] or len(asked["versionId"]) != 1 or not key or key.endswith("/"):
        raise UnknownOrigin(f"{uri!r}: write s3://bucket/key?versionId=ID for one version of one object")
    return bucket, key, asked["versionId"][0]


def s3_uri(bucket: str, key: str) -> str:
    """The address that `split_s3` takes apart again."""
    return f"s3://{bucket}/{quote(key)}"


def explained(uri: str, error: ObjectStoreError) -> OriginError | BundleMissing:
    """What a refused listing means to a person, in one line."""
    cause = error.__cause__
    if isinstance(cause, (NoCredentialsError, PartialCredentialsError)):
        return OriginRefused(f"{uri}: there are no S3 credentials here ({cause})")
    if isinstance(cause, ClientError):
        code = str(cause.response.get("Error", {}).get("Code", ""))
        status = int(cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status == 404:
            return BundleMissing(f"{uri}: there is no such bucket ({code}); look at the address")
        if status in (401, 403):
            return OriginRefused(
                f"{uri}: the store refuses these credentials ({code}); check the key and its right to list and read"
            )
        if status in TRY_AGAIN:
            return OriginUnreachable(
                f"{uri}: the store does not answer (HTTP {status}, {code or 'no reason'}); nothing was changed"
            )
        if status in (400, 405) and "?" in uri:
            return BundleMissing(f"{uri}: there is no such version; look at the address")
    if isinstance(cause, BotoCoreError):
        return OriginUnreachable(f"{uri}: the store does not answer ({cause}); nothing was changed")
    return OriginError(f"{uri}: {error}")


def _one_version(store: Bucket, uri: str) -> RemoteObject:
    _, key, version_id = located(uri)
    found = store.stat(key, version_id=version_id)
    if found is None:
        raise BundleMissing(f"{uri}: there is no such version; look at the address")
    return RemoteObject(
        uri=uri, path=safe_path(key.rpartition("/")[2]), size_bytes=found.size, version=found.etag, has_checksum=True
    )


def _item(bucket: str, entry: Listed, path: str) -> RemoteObject:
    return RemoteObject(
        uri=s3_uri(bucket, entry.key),
        path=safe_path(path),
        size_bytes=entry.size,
        version=entry.etag,
        has_checksum=entry.has_crc64nvme,
    )
