"""Filling the cluster's store behind the start: who fetched an object goes on, and the upload follows.

An upload reads what was fetched by descriptors of its own, so the files may be published, evicted or removed meanwhile.
It fails for itself: then the object's lease is given back, and the next node that wants it asks the origin. A process
that ends waits for its uploads; one that is killed leaves its leases to be taken over.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsec_blocks.cache.cluster_level.leases import Own
from dsec_blocks.cache.cluster_level.records import Record, Records
from dsec_blocks.cache.transfer.fetching import Fetched
from dsec_blocks.gateways.objects import ObjectStoreError
from dsec_blocks.model.errors import DsecError

if TYPE_CHECKING:
    from dsec_blocks.cache.cluster_level.level import ClusterLevel


MOST_OPEN = 256
"""Files that wait to be uploaded."""


class Behind:
    """The uploads of one process to one level, one after the other."""

    def __init__(self, level: "ClusterLevel") -> None:
        self._level = level
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dsec-upload")
        self._pending: dict[Future[None], int] = {}
        self._is_tidy = False

    def upload(self, own: Own, brought: Mapping[str, Fetched], *, until: ExitStack) -> None:
        """Begin to upload what lies there now; `until` is closed when that is over, and with it the leases end.

        Waits while earlier uploads hold as many files open as there may be.
        """
        self._wait_for_room(len(brought))
        open_files: dict[str, int] = {}
        try:
            for key, one in brought.items():
                open_files[key] = os.open(one.path, os.O_RDONLY)
            job = self._thread.submit(self._upload_all, own, dict(brought), open_files, until)
        except BaseException:
            _close(open_files, until)
            raise
        self._pending[job] = len(open_files)
        job.add_done_callback(lambda job: self._pending.pop(job, None))

    def settle(self) -> None:
        """Wait until everything that was begun is over."""
        wait(list(self._pending))

    def _wait_for_room(self, count: int) -> None:
        while (begun := {job: files for job, files in list(self._pending.items()) if not job.done()}) and (
            sum(begun.values()) + count > MOST_OPEN
        ):
            wait(begun, return_when=FIRST_COMPLETED)

    def _upload_all(
        self, own: Own, brought: Mapping[str, Fetched], open_files: Mapping[str, int], until: ExitStack
    ) -> None:
        breaker = self._level.breaker
        try:
            if not self._is_tidy:
                self._is_tidy = True
                self._level.tidy()
            watch = self._level.watch()
            for key, one in brought.items():
                # Taken over: whoever did uploads it too. Without room: the next node asks the origin again. Nor does a
                # process that ends wait for a dead store once more with each object.
                if own.has(key) and not breaker.is_open() and self._level.admits(watch, one.size_bytes):
                    there = replace(one, path=Path(f"/proc/self/fd/{open_files[key]}"))
                    self._try(lambda key=key, there=there: upload(self._level.records, key, there))  # type: ignore[misc]
                own.end(key)
        except (DsecError, OSError) as error:
            self._level.say(f"the cluster's store is not filled: {error}")
        finally:
            _close(open_files, until)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            with self._level.breaker.calling():
                work()
        except ObjectStoreError as error:
            self._level.say(f"the cluster's store is not filled: {error}")


def upload(records: Records, key: str, one: Fetched) -> None:
    """The blob, then what makes it known. Raises `ObjectStoreError`."""
    item = one.item
    assert item.version is not None
    blob = records.blob(one.digest)
    records.bucket.put(blob, one.path, at="cache.cluster.blob.put")
    stored = records.bucket.stat(blob)
    if stored is None or stored.size != one.size_bytes:
        raise ObjectStoreError(f"{records.bucket} {blob}: the upload is not there as it was sent")
    records.write(
        key,
        Record(uri=item.uri, version=item.version, digest=one.digest, size_bytes=one.size_bytes, verified=one.verified),
    )


def _close(open_files: Mapping[str, int], until: ExitStack) -> None:
    for descriptor in open_files.values():
        os.close(descriptor)
    until.close()
