"""Where checkpoints lie: a directory or a bucket, behind the few verbs that the commit protocol needs.

The one verb that matters is `swap_head`, compare-and-set. Its answer is "mine is HEAD now" or "I cannot say that it
is": a lost race, a lost answer and a stalled zombie all look the same, and whoever gets False reads HEAD again and
decides again. Every decision is repeatable, so that is always right.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from dsec_blocks.gateways import files
from dsec_blocks.gateways.inventory import abort_upload, stale_uploads
from dsec_blocks.gateways.objects import Bucket, ObjectMissing, PreconditionFailed, Stored
from dsec_blocks.model.errors import StoreUnusable

_KEPT_HEAD_FILES = 16
_PAUSES = (0.1, 0.5, 2.0)
"""Between two tries of a conditional PUT that got no answer, in seconds."""


class SeenHead(NamedTuple):
    """HEAD as it was read: `version` is what a swap must still find."""

    version: str
    fields: Mapping[str, Any]


class Place(Protocol):
    """A store of immutable objects by key, and one HEAD per run."""

    url: str

    def put(self, key: str, body: bytes | Path, *, at: str) -> str | None:
        """Store an object, whole or not at all; returns its ETag if the store has such."""

    def get(self, key: str) -> bytes:
        """An object's content. Raises `FileNotFoundError`."""

    def stat(self, key: str) -> Stored | None:
        """An object's size and ETag, or None."""

    def keys(self, prefix: str) -> Iterator[str]:
        """All keys below `prefix` (which ends in a slash)."""

    def remove(self, key: str, *, at: str) -> None:
        """Remove an object; one that is gone is fine."""

    def drop_unfinished(self, *, before: float) -> int:
        """Remove what writers left behind that died before the time `before`; returns how much there was."""

    def head(self, run: str) -> SeenHead | None:
        """The run's HEAD, or None."""

    def swap_head(self, run: str, seen: SeenHead | None, fields: Mapping[str, Any]) -> bool:
        """Make `fields` the run's HEAD if it still is `seen`; True only if it certainly was and now is."""


class Directory:
    """A directory on a file system. HEAD is a row of numbered files; the highest number counts.

    The next number is taken with `link()`, which exactly one writer wins. Only numbers at least 16 below the highest
    are ever removed, so a writer that slept so long that it took a removed number a second time sees how far HEAD
    has moved on, and knows that it lost.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def put(self, key: str, body: bytes | Path, *, at: str) -> str | None:
        """Write, fsync, rename."""
        path = self._directory_of(key) / Path(key).name
        files.write(path, _chunks(body) if isinstance(body, Path) else body, at=at)
        return None

    def get(self, key: str) -> bytes:
        """Read the file."""
        return (self.root / key).read_bytes()

    def stat(self, key: str) -> Stored | None:
        """Stat the file."""
        try:
            return Stored((self.root / key).stat().st_size, None)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """Walk the directory; names of unfinished writes (they begin with a dot) are listed as well."""
        for directory, _, names in os.walk(self.root / prefix):
            for name in names:
                yield str((Path(directory) / name).relative_to(self.root))

    def remove(self, key: str, *, at: str) -> None:
        """Unlink the file and the directories it leaves empty."""
        path = self.root / key
        files.remove(path, at=at)
        for parent in path.parents:
            if parent in (self.root, *self.root.parents) or not files.remove_empty(parent):
                return

    def drop_unfinished(self, *, before: float) -> int:
        """Temporary files: their names begin with a dot."""
        dropped = 0
        for key in list(self.keys("ckpt")):
            path = self.root / key
            with suppress(FileNotFoundError):
                if path.name.startswith(".") and path.stat().st_mtime < before:
                    files.remove(path, at="checkpoint.janitor.remove")
                    dropped += 1
        return dropped

    def head(self, run: str) -> SeenHead | None:
        """The highest numbered HEAD file."""
        numbers = self._head_numbers(run)
        while numbers:
            number = numbers.pop()
            with suppress(FileNotFoundError):
                return SeenHead(str(number), json.loads(self._head_path(run, number).read_bytes()))
        return None

    def swap_head(self, run: str, seen: SeenHead | None, fields: Mapping[str, Any]) -> bool:
        """Publish the next number."""
        number = 1 if seen is None else int(seen.version) + 1
        nonce = uuid4().hex
        path = self._directory_of(f"ckpt/{run}/HEAD/{number}") / f"{number:012d}"
        failure: OSError | None = None
        try:
            files.publish(path, _head_bytes(fields, nonce), at="checkpoint.head.publish")
        except OSError as error:  # lost, or only its answer was: the file itself tells
            failure = error
        numbers = self._head_numbers(run)
        try:
            is_mine = json.loads(path.read_bytes())["nonce"] == nonce
        except FileNotFoundError:
            if failure is not None and not isinstance(failure, FileExistsError):
                raise failure from None
            return False
        if not is_mine or numbers[-1] - number >= _KEPT_HEAD_FILES:
            return False
        for old in numbers[:-_KEPT_HEAD_FILES]:
            files.remove(self._head_path(run, old), at="checkpoint.head.prune")
        return True

    def _head_path(self, run: str, number: int) -> Path:
        return self.root / "ckpt" / run / "HEAD" / f"{number:012d}"

    def _head_numbers(self, run: str) -> list[int]:
        try:
            names = os.listdir(self.root / "ckpt" / run / "HEAD")
        except (FileNotFoundError, NotADirectoryError):  # nothing is there; whoever writes is told why he cannot
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def _directory_of(self, key: str) -> Path:
        directory = (self.root / key).parent
        try:
            files.make_directory(directory)
        except OSError as error:
            raise StoreUnusable(
                f"checkpoints cannot be written below {self.root}: {error.strerror or error}; "
                "make the directory writable for this user, or name another store"
            ) from error
        return directory


class S3Prefix:
    """A prefix in a bucket. HEAD is one object, changed by conditional PUT."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.url = f"s3://{bucket.name}/{self.prefix}"

    def put(self, key: str, body: bytes | Path, *, at: str) -> str | None:
        """PUT, in parts if it is large."""
        return self.bucket.put(self.prefix + key, body, at=at)

    def get(self, key: str) -> bytes:
        """GET."""
        return self.bucket.get(self.prefix + key)[0]

    def stat(self, key: str) -> Stored | None:
        """HEAD (of HTTP)."""
        return self.bucket.stat(self.prefix + key)

    def keys(self, prefix: str) -> Iterator[str]:
        """Paged listing."""
        return (key.removeprefix(self.prefix) for key in self.bucket.keys(self.prefix + prefix))

    def remove(self, key: str, *, at: str) -> None:
        """DELETE."""
        self.bucket.remove(self.prefix + key, at=at)

    def drop_unfinished(self, *, before: float) -> int:
        """Multipart uploads: invisible, and billed."""
        stale = stale_uploads(self.bucket, f"{self.prefix}ckpt/", before=before)
        for upload in stale:
            abort_upload(self.bucket, upload, at="checkpoint.janitor.abort")
        return len(stale)

    def head(self, run: str) -> SeenHead | None:
        """GET with the ETag."""
        try:
            content, etag = self.bucket.get(self._head_key(run))
        except ObjectMissing:
            return None
        return SeenHead(etag, json.loads(content))

    def swap_head(self, run: str, seen: SeenHead | None, fields: Mapping[str, Any]) -> bool:
        """Conditional PUT; on a conflict or no answer the nonce tells whose object is there.

        While HEAD is still the one that was seen, the same PUT may be sent again: its condition and its nonce make
        it count once, even if the first one arrives late.
        """
        body = _head_bytes(fields, nonce := uuid4().hex)
        etag = seen.version if seen else None
        for pause in (*_PAUSES, None):
            try:
                self.bucket.put_if(self._head_key(run), body, etag=etag, at="checkpoint.head.put")
                return True
            except OSError as failure:
                found = self.head(run)
                if found is not None and found.fields.get("nonce") == nonce:
                    return True
                is_unchanged = (found.version if found else None) == etag
                if isinstance(failure, PreconditionFailed) or not is_unchanged:
                    return False
                if pause is None:
                    raise
            time.sleep(pause)
        return False

    def _head_key(self, run: str) -> str:
        return f"{self.prefix}ckpt/{run}/HEAD"


def _head_bytes(fields: Mapping[str, Any], nonce: str) -> bytes:
    return json.dumps({**fields, "nonce": nonce}, sort_keys=True).encode()


def _chunks(path: Path, size: int = 4 * 2**20) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(size):
            yield chunk
