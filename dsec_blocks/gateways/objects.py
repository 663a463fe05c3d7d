"""The object-store gateway: every write to S3, at a named fault point, and the one place that makes a boto3 client.

Conditional writes are the store's compare-and-set, and their outcome can be unknown: a PUT whose answer was lost may
have been applied, and the next try then conflicts with itself. So a conditional PUT is never retried here; it raises
`PreconditionFailed` or `OutcomeUnknown`, and the caller reads the object back and looks for its own nonce. All
other calls are repeatable and are retried here, by one policy; botocore's own retries are off.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from tenacity import retry, retry_if_exception, stop_before_delay, wait_random_exponential

from dsec_blocks.gateways.faults import fault_point

PART_BYTES = 64 * 2**20
PARALLEL_PARTS = 4
PATIENCE_SECONDS = 30.0
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
_CONFLICT = frozenset({409, 412})
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class PreconditionFailed(OSError):
    """A conditional write found another state than the one it named (HTTP 412 or 409)."""


class OutcomeUnknown(OSError):
    """A conditional write that may or may not have been applied: read back before trying again."""


class ObjectMissing(FileNotFoundError):
    """There is no such object (or bucket)."""


class ObjectStoreError(OSError):
    """The store refused a call, or could not be reached for as long as the retries last."""


class Stored(NamedTuple):
    """What a store says about an object without sending it. The ETag is an opaque version, never a hash."""

    size: int
    etag: str | None


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """How to reach an S3-compatible store; None leaves a choice to boto3's own chain (environment, profile, role)."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)


def status_of(error: BaseException) -> int:
    """The HTTP status that the store answered with, 0 when it did not."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def _is_transient(error: BaseException) -> bool:
    return status_of(error) in _TRANSIENT or (
        isinstance(error, BotoCoreError) and type(error).__name__ in _WORTH_A_RETRY
    )


_WORTH_A_RETRY = frozenset(
    {"EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError", "HTTPClientError"}
    | {"ProxyConnectionError", "ResponseStreamingError", "IncompleteReadError"}
)


def _patience_of(bucket: "Bucket") -> float:
    return PATIENCE_SECONDS if bucket.patience_seconds is None else bucket.patience_seconds


P = ParamSpec("P")
R = TypeVar("R")

_patiently = retry(
    retry=retry_if_exception(_is_transient),
    stop=lambda state: stop_before_delay(_patience_of(state.args[0]))(state),
    wait=wait_random_exponential(multiplier=0.1, max=5.0),
    reraise=True,
)


def repeatable(call: Callable[P, R]) -> Callable[P, R]:
    """For calls that may be applied twice: retried while it makes sense, then one error that names the store."""
    patient = _patiently(call)

    @wraps(call)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return patient(*args, **kwargs)
        except (ClientError, BotoCoreError) as error:
            raise ObjectStoreError(f"{args[0]} {args[1] if len(args) > 1 else ''}: {error}") from error

    return repeated


@lru_cache(maxsize=8)
def _models(data_path: str | None) -> Any:
    """What botocore's files say of S3. To read them again would be nine tenths of the time to make another client."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


@lru_cache(maxsize=8)
def _client(credentials: Credentials, pid: int, patience_seconds: float = READ_SECONDS) -> Any:
    """One client per store and process: making one is slow, and its connections do not survive a fork.

    Each has a session of its own, so that nothing but the models is shared between stores.
    """
    import boto3
    from botocore.config import Config
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    return boto3.session.Session(botocore_session=session).client(
        "s3",
        endpoint_url=credentials.endpoint_url,
        region_name=credentials.region or ("us-east-1" if credentials.endpoint_url else None),
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        config=Config(
            s3={"addressing_style": "path"} if credentials.endpoint_url else {},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version="s3v4",  # presigned URLs would otherwise still be of the version before
            retries={"total_max_attempts": 1},
            connect_timeout=min(CONNECT_SECONDS, max(1.0, patience_seconds)),
            read_timeout=min(READ_SECONDS, max(1.0, patience_seconds)),
            max_pool_connections=16,
        ),
    )


class Bucket:
    """One bucket of one store. Safe to share between threads; a forked child makes its own client.

    `patience_seconds`: how long a call is tried again (None: `PATIENCE_SECONDS`), for callers who can do without.
    """

    def __init__(self, name: str, credentials: Credentials, *, patience_seconds: float | None = None) -> None:
        self.name = name
        self.credentials = credentials
        self.patience_seconds = patience_seconds

    def __str__(self) -> str:
        return f"s3://{self.name} at {self.credentials.endpoint_url or 'AWS'}"

    @property
    def client(self) -> Any:
        """The boto3 client that all buckets of the store share in this process."""
        if self.patience_seconds is None:
            return _client(self.credentials, os.getpid())
        return _client(self.credentials, os.getpid(), self.patience_seconds)

    def put(self, key: str, body: bytes | Path, *, at: str) -> str:
        """Store an object, replacing any; returns its ETag. Large files go up in parts, side by side."""
        with fault_point(at):
            if isinstance(body, Path) and body.stat().st_size > PART_BYTES:
                return self._put_in_parts(key, body)
            return self._put_whole(key, body)

    def put_if(self, key: str, body: bytes, *, etag: str | None, at: str) -> str:
        """Store an object only if its current ETag is `etag` (None: only if there is none); returns the new ETag.

        Raises `PreconditionFailed` or `OutcomeUnknown`.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with fault_point(at):
            try:
                answer = self.client.put_object(Bucket=self.name, Key=key, Body=body, **condition)
            except ClientError as error:
                status = status_of(error)
                if status in _CONFLICT or (status == 404 and etag is not None):
                    raise PreconditionFailed(f"s3://{self.name}/{key}: {error}") from error
                if status in _TRANSIENT:
                    raise OutcomeUnknown(f"s3://{self.name}/{key}: {error}") from error
                raise ObjectStoreError(f"{self} {key}: {error}") from error
            except BotoCoreError as error:
                raise OutcomeUnknown(f"s3://{self.name}/{key}: {error}") from error
        return str(answer["ETag"])

    @repeatable
    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its ETag. Raises `ObjectMissing`."""
        try:
            answer = self.client.get_object(Bucket=self.name, Key=key)
            content: bytes = answer["Body"].read()
        except ClientError as error:
            if status_of(error) == 404:
                raise ObjectMissing(f"s3://{self.name}/{key}") from error
            raise
        return content, str(answer["ETag"])

    @repeatable
    def stat(self, key: str, *, version_id: str | None = None) -> Stored | None:
        """Size and ETag of the object (or of one version of it), or None when there is no such thing."""
        which = {} if version_id is None else {"VersionId": version_id}
        try:
            answer = self.client.head_object(Bucket=self.name, Key=key, **which)
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise
        return Stored(int(answer["ContentLength"]), str(answer["ETag"]))

    def keys(self, prefix: str) -> Iterator[str]:
        """Every key below `prefix`, page by page."""
        token: str | None = None
        while True:
            page = self._page(prefix, token)
            yield from (entry["Key"] for entry in page.get("Contents", ()))
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or token is None:
                return

    def remove(self, key: str, *, at: str) -> None:
        """Remove an object; one that is already gone is fine."""
        with fault_point(at):
            self._delete(key)

    @repeatable
    def _page(self, prefix: str, token: str | None) -> dict[str, Any]:
        more = {} if token is None else {"ContinuationToken": token}
        page: dict[str, Any] = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix, **more)
        return page

    @repeatable
    def _delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    @repeatable
    def _put_whole(self, key: str, body: bytes | Path) -> str:
        content = body.read_bytes() if isinstance(body, Path) else body
        return str(self.client.put_object(Bucket=self.name, Key=key, Body=content)["ETag"])

    def _put_in_parts(self, key: str, path: Path) -> str:
        upload = self._begin_parts(key)
        offsets = range(0, path.stat().st_size, PART_BYTES)
        try:
            with ThreadPoolExecutor(PARALLEL_PARTS) as pool:
                parts = list(pool.map(lambda n: self._put_part(key, upload, path, n, offsets[n]), range(len(offsets))))
            return self._finish_parts(key, upload, parts)
        except BaseException:
            # Parts of an unfinished upload are invisible and billed.
            self._abort_parts(key, upload)
            raise

    @repeatable
    def _begin_parts(self, key: str) -> str:
        return str(self.client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"])

    @repeatable
    def _finish_parts(self, key: str, upload: str, parts: list[dict[str, Any]]) -> str:
        listed = {"Parts": parts}
        answer = self.client.complete_multipart_upload(
            Bucket=self.name, Key=key, UploadId=upload, MultipartUpload=listed
        )
        return str(answer["ETag"])

    @repeatable
    def _abort_parts(self, key: str, upload: str) -> None:
        self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)

    @repeatable
    def _put_part(self, key: str, upload: str, path: Path, index: int, offset: int) -> dict[str, Any]:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(PART_BYTES)
        answer = self.client.upload_part(Bucket=self.name, Key=key, UploadId=upload, PartNumber=index + 1, Body=content)
        return {"PartNumber": index + 1, "ETag": answer["ETag"]}
