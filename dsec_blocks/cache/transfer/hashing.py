"""The content's hashes, fed once and in order: blake3 always, CRC64NVME where the store keeps one to compare with."""

import base64
from collections.abc import Callable

from blake3 import blake3

try:
    from awscrt.checksums import crc64nvme as _crc64nvme
except ImportError:  # the extra `crt`
    _crc64nvme = None

Crc = Callable[[memoryview, int], int]


class ContentHash:
    """A running hash over the first `offset` bytes of an object."""

    def __init__(self, *, with_crc: bool) -> None:
        self.offset = 0
        self._blake3 = blake3()
        self._crc: int | None = 0 if with_crc and _crc64nvme is not None else None

    def feed(self, piece: memoryview) -> None:
        """The next bytes."""
        self._blake3.update(piece)
        if self._crc is not None:
            assert _crc64nvme is not None
            self._crc = _crc64nvme(piece, self._crc)
        self.offset += len(piece)

    def copy(self) -> "ContentHash":
        """The same state once more, to come back to."""
        twin = ContentHash(with_crc=False)
        twin.offset, twin._blake3, twin._crc = self.offset, self._blake3.copy(), self._crc
        return twin

    @property
    def digest(self) -> str:
        """blake3 of what was fed, in hex."""
        return str(self._blake3.hexdigest())

    @property
    def crc(self) -> str | None:
        """`crc64nvme:BASE64` of what was fed; None where it is not computed."""
        if self._crc is None:
            return None
        return f"crc64nvme:{base64.b64encode(self._crc.to_bytes(8, 'big')).decode()}"
