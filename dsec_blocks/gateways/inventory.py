"""The object-store gateway for what a bucket holds: listings, checksums, signed addresses, uploads left unfinished."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from dsec_blocks.gateways.faults import fault_point
from dsec_blocks.gateways.objects import Bucket, repeatable, status_of


class Listed(NamedTuple):
    """One object of a listing. `has_crc64nvme`: the store keeps a checksum of the whole object."""

    key: str
    size: int
    etag: str | None
    modified_at: float
    has_crc64nvme: bool


class Unfinished(NamedTuple):
    """A multipart upload that was begun and neither completed nor aborted: invisible, and billed."""

    key: str
    upload_id: str
    begun_at: float


def listing(bucket: Bucket, prefix: str) -> Iterator[Listed]:
    """Every object below `prefix`, page by page."""
    token: str | None = None
    while True:
        page = _objects_page(bucket, prefix, token)
        for entry in page.get("Contents", ()):
            yield Listed(
                key=entry["Key"],
                size=int(entry["Size"]),
                etag=entry.get("ETag"),
                modified_at=entry["LastModified"].timestamp(),
                has_crc64nvme="CRC64NVME" in entry.get("ChecksumAlgorithm", ())
                and entry.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT",
            )
        token = page.get("NextContinuationToken")
        if not page.get("IsTruncated") or token is None:
            return


@repeatable
def crc64nvme(bucket: Bucket, key: str, *, version_id: str | None = None) -> str | None:
    """The store's checksum of the whole object in base64, None where it keeps none."""
    which = {} if version_id is None else {"VersionId": version_id}
    try:
        answer = bucket.client.head_object(Bucket=bucket.name, Key=key, ChecksumMode="ENABLED", **which)
    except ClientError as error:
        if status_of(error) == 404:
            return None
        raise
    is_whole = answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    return str(answer["ChecksumCRC64NVME"]) if is_whole and answer.get("ChecksumCRC64NVME") else None


def signed_url(bucket: Bucket, key: str, *, seconds: int, version_id: str | None = None) -> str:
    """An address that lets its holder read the object (or one version of it) for a while.

    Raises botocore's `NoCredentialsError`.
    """
    asked = {"Bucket": bucket.name, "Key": key, **({} if version_id is None else {"VersionId": version_id})}
    return str(bucket.client.generate_presigned_url("get_object", Params=asked, ExpiresIn=seconds))


def unfinished_uploads(bucket: Bucket, prefix: str) -> Iterator[Unfinished]:
    """Every unfinished multipart upload below `prefix`."""
    marks: dict[str, str] = {}
    while True:
        page = _uploads_page(bucket, prefix, marks)
        for entry in page.get("Uploads", ()):
            yield Unfinished(entry["Key"], entry["UploadId"], entry["Initiated"].timestamp())
        if not page.get("IsTruncated"):
            return
        marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}


def stale_uploads(bucket: Bucket, prefix: str, *, before: float) -> list[Unfinished]:
    """Those below `prefix` that were begun before the time `before`: nobody goes on with them any more."""
    return [
        upload
        for upload in unfinished_uploads(bucket, prefix)
        if upload.begun_at < before and upload.key.startswith(prefix)  # not every store heeds the prefix
    ]


def abort_upload(bucket: Bucket, upload: Unfinished, *, at: str) -> None:
    """Drop an unfinished upload and its parts; one that is already gone is fine."""
    with fault_point(at):
        _abort(bucket, upload.key, upload.upload_id)


@repeatable
def _abort(bucket: Bucket, key: str, upload_id: str) -> None:
    try:
        bucket.client.abort_multipart_upload(Bucket=bucket.name, Key=key, UploadId=upload_id)
    except ClientError as error:
        if status_of(error) != 404:
            raise


@repeatable
def _objects_page(bucket: Bucket, prefix: str, token: str | None) -> dict[str, Any]:
    more = {} if token is None else {"ContinuationToken": token}
    page: dict[str, Any] = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, **more)
    return page


@repeatable
def _uploads_page(bucket: Bucket, prefix: str, marks: dict[str, str]) -> dict[str, Any]:
    page: dict[str, Any] = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=prefix, **marks)
    return page
