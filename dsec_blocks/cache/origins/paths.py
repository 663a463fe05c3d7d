"""A file or a directory as an origin: a mounted share, or a disk that others fill."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from dsec_blocks.cache.errors import BundleMissing, OriginChanged, OriginRefused
from dsec_blocks.cache.origins.objects import RemoteObject, safe_path, selected

CHUNK_BYTES = 1024 * 1024


class PathOrigin:
    """`file:///path` or a plain absolute path. The version is size, time and inode: a file's name proves nothing."""

    def list(self, uri: str, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[RemoteObject, ...]:
        """Every regular file below the directory, or the one file."""
        root = local_path(uri)
        if not root.exists():
            raise BundleMissing(f"{root} does not exist")
        try:
            paths = [root] if root.is_file() else sorted(_files_below(root))
            items = [_described(path, path.name if path == root else str(path.relative_to(root))) for path in paths]
        except PermissionError as error:
            raise OriginRefused(f"{error.filename} may not be read by this user") from error
        return selected(uri, items, include=include, exclude=exclude)

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """Read the range; the file is compared with its listing before and after."""
        path = local_path(item.uri)
        room = buffer if buffer is not None else memoryview(bytearray(min(CHUNK_BYTES, max(1, length))))
        try:
            with path.open("rb", buffering=0) as file:
                _still_the_same(item, path, os.fstat(file.fileno()))
                position = start
                while position < start + length:
                    count = os.preadv(file.fileno(), [room[: start + length - position]], position)
                    if not count:
                        raise OriginChanged(f"{path} was cut short while it was read; fetch it again")
                    position += count
                    yield room[:count]
                _still_the_same(item, path, os.fstat(file.fileno()))
        except FileNotFoundError:
            raise OriginChanged(f"{path} was removed while it was fetched") from None
        except PermissionError as error:
            raise OriginRefused(f"{path} may not be read by this user") from error

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """A file system keeps none."""

    def latency_seconds(self) -> float | None:
        """A mounted share hides it; a disk has none."""
        return 0.0

    def close(self) -> None:
        """Nothing is open."""


def local_path(uri: str) -> Path:
    """The path that `file:///path` or a plain path names."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri).absolute()


def _files_below(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root, onerror=_raise):
        for name in names:
            path = Path(directory) / name
            if path.is_file():  # a dangling link is no data, and must not hide the rest
                yield path


def _raise(error: OSError) -> None:
    raise error


def _described(path: Path, name: str) -> RemoteObject:
    found = path.stat()
    return RemoteObject(
        uri=f"file://{quote(str(path))}", path=safe_path(name), size_bytes=found.st_size, version=_version(found)
    )


def _version(found: os.stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}"


def _still_the_same(item: RemoteObject, path: Path, found: os.stat_result) -> None:
    if item.version is not None and _version(found) != item.version:
        raise OriginChanged(f"{path} was changed while it was fetched; nothing was published, fetch it again")
