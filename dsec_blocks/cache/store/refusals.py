"""What it means to a person when the disk under a cache refuses something."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec_blocks.cache.errors import LocalDiskError

_OF_THE_DISK = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO})


@contextmanager
def told(root: Path, what: str) -> Iterator[None]:
    """Turn the disk's own errors into one line that begins with `what`. Raises `LocalDiskError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        raise LocalDiskError(
            f"{what} in the cache directory {root}: {error.strerror}; make it writable for this user, free some space, "
            "or name another directory"
        ) from error
