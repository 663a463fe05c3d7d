"""The content's hashes, fed once and in order.

blake3 always: it is the content's name. Besides it what somebody else promised: CRC64NVME where the store keeps one,
SHA-256 or Git's blob id where a hub lists one.
"""

import base64
import hashlib
from typing import Any

from blake3 import blake3

try:
    from awscrt.checksums import crc64nvme as _crc64nvme
except ImportError:  # the extra `crt`
    _crc64nvme = None


class ContentHash:
    """A running hash over the first `offset` bytes of an object of `size_bytes`."""

    def __init__(self, *, size_bytes: int, promised: str | None = None, with_crc: bool = False) -> None:
        self.offset = 0
        self._blake3 = blake3()
        self._algorithm = (promised or "blake3:").partition(":")[0]
        self._other: Any = None
        if self._algorithm == "sha256":
            self._other = hashlib.sha256()
        elif self._algorithm == "git-sha1":
            self._other = hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
        elif self._algorithm != "blake3":
            raise ValueError(f"{promised!r}: a digest is blake3:…, sha256:… or git-sha1:…")
        self._crc: int | None = 0 if with_crc and _crc64nvme is not None else None

    def feed(self, piece: memoryview) -> None:
        """The next bytes."""
        self._blake3.update(piece)
        if self._other is not None:
            self._other.update(piece)
        if self._crc is not None:
            assert _crc64nvme is not None
            self._crc = _crc64nvme(piece, self._crc)
        self.offset += len(piece)

    def copy(self) -> "ContentHash":
        """The same state once more, to come back to."""
        twin = ContentHash(size_bytes=0)
        twin.offset, twin._crc, twin._algorithm = self.offset, self._crc, self._algorithm
        twin._blake3 = self._blake3.copy()
        twin._other = None if self._other is None else self._other.copy()
        return twin

    @property
    def digest(self) -> str:
        """blake3 of what was fed, in hex."""
        return str(self._blake3.hexdigest())

    @property
    def promised(self) -> str:
        """What was fed, by the algorithm of the promise: `sha256:…`."""
        return f"{self._algorithm}:{self.digest if self._other is None else self._other.hexdigest()}"

    @property
    def crc(self) -> str | None:
        """`crc64nvme:BASE64` of what was fed; None where it is not computed."""
        if self._crc is None:
            return None
        return f"crc64nvme:{base64.b64encode(self._crc.to_bytes(8, 'big')).decode()}"
