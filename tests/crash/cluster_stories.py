"""One node that fetches through the cluster level, as a process of its own that can be struck anywhere.

Arguments: STORY ROOT LEDGER_URL ENDPOINT BUCKET HOLDER.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsec_blocks.cache.cluster_level import ClusterLevel, Through, Watermarks, circuit_breaker
from dsec_blocks.cache.cluster_level.level import UNFINISHED_SECONDS
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.transfer import Fetched, TransferSettings, fetch
from dsec_blocks.gateways import objects
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Bucket, Credentials
from dsec_blocks.ledger import Ledger
from tests.fixtures.s3 import ACCESS_KEY, SECRET_KEY

KB = 1000
FILES = {"a.bin": b"a" * 300 * KB, "b.bin": b"b" * 200 * KB, "sub/c.bin": bytes(range(256)) * 10_000, "empty": b""}
TAKEOVER_SECONDS = 2.5
NOBODY = "http://127.0.0.1:9"
"""An address that refuses connections."""
PART_BYTES = 5 * 2**20
"""The least that S3 takes as a part that is not the last."""
LARGE = bytes(range(253)) * 60_000
"""A file of three such parts."""
STORIES = ("fill", "read", "damaged", "evict", "unfinished", "breaker")
"""What the matrix is made of; `breaker` is a node whose store does not answer, `parts` one that is killed between two
parts of an upload."""


class CountingOrigin(PathOrigin):
    """A directory that knows how often it was read, and takes its time over it."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.bytes_read = 0
        self._seconds = seconds

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        time.sleep(self._seconds)
        self.bytes_read += length
        yield from super().read(item, start=start, length=length, buffer=buffer)


def make_origin(root: Path) -> None:
    for name, content in FILES.items():
        path = root / "origin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def level(
    ledger_url: str,
    endpoint: str,
    bucket: str,
    holder: str,
    *,
    limit_bytes: int | None = None,
    unfinished_seconds: float = UNFINISHED_SECONDS,
    breaker_mark: Path | None = None,
) -> ClusterLevel:
    clock = SystemClock()
    credentials = Credentials(endpoint_url=endpoint, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    return ClusterLevel(
        Bucket(bucket, credentials),
        "",
        ledger=Ledger.open(ledger_url, clock=clock),
        clock=clock,
        holder=holder,
        watermarks=Watermarks(limit_bytes=limit_bytes, idle_seconds=0.0) if limit_bytes else None,
        takeover_seconds=TAKEOVER_SECONDS,
        unfinished_seconds=unfinished_seconds,
        breaker_mark=breaker_mark,
    )


def bring(opened: ClusterLevel, origin: PathOrigin, root: Path, staging: Path) -> list[Fetched]:
    through = Through(opened, origin)
    items = through.list(str(root / "origin"))
    settings = TransferSettings(connections=2, patience_seconds=10)
    got = fetch(items, origin=through, staging=staging, settings=settings)
    opened.behind.settle()
    return got


def die_between_two_parts() -> None:
    """Be killed once the first part of an upload has arrived."""
    objects.PART_BYTES = PART_BYTES
    objects.PARALLEL_PARTS = 1
    put_part = objects.Bucket._put_part

    def put_first(bucket: objects.Bucket, key: str, upload: str, path: Path, index: int, offset: int) -> dict[str, Any]:
        if index:
            os.kill(os.getpid(), signal.SIGKILL)
        return put_part(bucket, key, upload, path, index, offset)

    objects.Bucket._put_part = put_first  # type: ignore[method-assign]


def main() -> None:
    story, root, ledger_url, endpoint, bucket, holder = sys.argv[1:]
    limit = 2_900 * KB if story == "evict" else None
    patience = 0.0 if story == "unfinished" else UNFINISHED_SECONDS
    mark = None
    if story == "breaker":
        endpoint, mark, circuit_breaker.PATIENCE_SECONDS = NOBODY, Path(root) / circuit_breaker.MARK, 0.0
    opened = level(
        ledger_url, endpoint, bucket, holder, limit_bytes=limit, unfinished_seconds=patience, breaker_mark=mark
    )
    if story == "parts":
        die_between_two_parts()
    # Longer than one beat, so that a filler beats.
    bring(opened, CountingOrigin(seconds=1.3), Path(root), Path(root) / f"staging-{holder}")


if __name__ == "__main__":
    main()
