"""What a refused write to the node's own disk means to a person."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec_blocks.cache.errors import LocalDiskError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free space there, or lower the cache's size limit",
    errno.EDQUOT: "this user's quota there is used up: free space, or lower the cache's size limit",
    errno.EROFS: "the disk is read-only (a disk that fails is often remounted so): look at it before you go on",
    errno.EACCES: "this user may not write there: change the directory's owner, or name another one",
    errno.EPERM: "this user may not write there: change the directory's owner, or name another one",
    errno.EIO: "the disk reports an error: look at it before you go on",
    errno.EFBIG: "the file system takes no file of this size: name a directory on another one",
    errno.ENOENT: "the directory is gone: somebody removed it during the fetch",
}


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn the disk's own errors into one line. Raises `LocalDiskError`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, str(error.strerror or error))
        raise LocalDiskError(f"{path.parent} refuses a write: {advice}; nothing was published") from error
