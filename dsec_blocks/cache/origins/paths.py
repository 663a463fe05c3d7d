"""A file or a directory as an origin: a mounted share, or a disk that others fill."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from dsec_blocks.cache.errors import OriginChanged, OriginRefused, OriginUnreachable, RootGone
from dsec_blocks.cache.origins.objects import RemoteObject, safe_path, selected

CHUNK_BYTES = 1024 * 1024


class PathOrigin:
    """`file:///path` or a plain absolute path. The version is size, time and inode: a file's name proves nothing."""

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """Every regular file below the directory, or the one file. A path is asked once, whatever the patience.

        Raises `RootGone` when there is nothing (an unmounted share looks like that), and `OriginUnreachable` when the
        file system under it fails.
        """
        root = local_path(uri)
        with _asking(root):
            paths = [root] if stat.S_ISREG(root.stat().st_mode) else sorted(_files_below(root))
            items = [_described(path, path.name if path == root else str(path.relative_to(root))) for path in paths]
        if not items:
            raise RootGone(f"there is nothing at {uri}; look at the address, and whether its disk is mounted")
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


@contextmanager
def _asking(root: Path) -> Iterator[None]:
    """Turn what a file system says to a listing into what that means for the origin at `root`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == str(root):
            raise RootGone(f"{root} does not exist") from error
        raise OriginChanged(f"{error.filename} was removed while {root} was listed") from error
    except PermissionError as error:
        raise OriginRefused(f"{error.filename} may not be read by this user") from error
    except OSError as error:
        raise OriginUnreachable(f"{root}: its file system does not answer ({error.strerror or error})") from error


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
