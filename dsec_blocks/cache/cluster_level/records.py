"""What lies in the cluster's bucket, and under which key.

    blobs/DIGEST                  content, named by its own blake3
    objects/KEY.json              (origin address, version) → digest; written after the blob, removed before it
    listings/KEY/IDENTITY.json    a bundle's last listing, for the time when the origin is away

A listing is kept for each identity that was allowed to list: when nobody can ask the origin who may read, only those
may who could before.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsec_blocks.cache.origins.objects import RemoteObject
from dsec_blocks.gateways.inventory import Listed, abort_upload, listing, stale_uploads
from dsec_blocks.gateways.objects import Bucket, ObjectMissing


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One object that the cluster level holds. `verified` says against what its filler compared it."""

    uri: str
    version: str
    digest: str
    size_bytes: int
    verified: str


def key_of(item: RemoteObject) -> str | None:
    """The name of an object's record and lease; None for one without a version, which nobody may share."""
    if item.version is None:
        return None
    return hashlib.sha256(json.dumps([item.uri, item.version, item.size_bytes]).encode()).hexdigest()


class Records:
    """The bucket, read and written by meaning."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def within(self, patience_seconds: float | None) -> "Records":
        """The same for one who does not wait long for the store (None: as long as anybody)."""
        if patience_seconds is None:
            return self
        bucket = Bucket(self.bucket.name, self.bucket.credentials, patience_seconds=patience_seconds)
        return Records(bucket, self._prefix)

    def read(self, key: str) -> Record | None:
        """The record, None if there is none or it cannot be read."""
        found = self._json(f"objects/{key}.json")
        try:
            return None if found is None else Record(**found)
        except TypeError:
            return None

    def write(self, key: str, record: Record) -> None:
        """Make an object known; its blob is there already."""
        body = json.dumps(asdict(record), sort_keys=True).encode()
        self.bucket.put(self.path(f"objects/{key}.json"), body, at="cache.cluster.record.put")

    def forget(self, key: str) -> None:
        """Make an object unknown."""
        self.bucket.remove(self.path(f"objects/{key}.json"), at="cache.cluster.record.remove")

    def all(self) -> dict[str, Record]:
        """Every record by key."""
        start = self.path("objects/")
        keys = [entry.key.removeprefix(start).removesuffix(".json") for entry in listing(self.bucket, start)]
        return {key: record for key in keys if (record := self.read(key)) is not None}

    def blob(self, digest: str) -> str:
        """The key of a content."""
        return self.path(f"blobs/{digest}")

    def blobs(self) -> list[Listed]:
        """Every content, complete; an upload under way is not listed."""
        return list(listing(self.bucket, self.path("blobs/")))

    def drop_unfinished(self, *, before: float) -> int:
        """Abort the uploads in parts that were begun before the time `before`: invisible, and billed; their number."""
        stale = stale_uploads(self.bucket, self.path("blobs/"), before=before)
        for upload in stale:
            abort_upload(self.bucket, upload, at="cache.cluster.upload.abort")
        return len(stale)

    def write_listing(
        self, uri: str, patterns: Sequence[Sequence[str]], who: str, items: Sequence[RemoteObject]
    ) -> None:
        """Keep a listing, unless it is there already."""
        fields = [asdict(item) for item in items]
        if self._json(_listing_name(uri, patterns, who)) != fields:
            body = json.dumps(fields).encode()
            self.bucket.put(self.path(_listing_name(uri, patterns, who)), body, at="cache.cluster.listing.put")

    def read_listing(self, uri: str, patterns: Sequence[Sequence[str]], who: str) -> tuple[RemoteObject, ...] | None:
        """The listing that this identity last saw."""
        found = self._json(_listing_name(uri, patterns, who))
        return None if found is None else tuple(RemoteObject(**fields) for fields in found)

    def path(self, name: str) -> str:
        """A key below the prefix."""
        return f"{self._prefix}{name}"

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.bucket.get(self.path(name))[0])
        except (ObjectMissing, ValueError):
            return None


def _listing_name(uri: str, patterns: Sequence[Sequence[str]], who: str) -> str:
    digest = hashlib.sha256(json.dumps([uri, *map(list, patterns)]).encode()).hexdigest()
    return f"listings/{digest}/{hashlib.sha256(who.encode()).hexdigest()[:32]}.json"
