"""How much a fetch may use, and how long it waits; refused at once where it cannot work."""

from dataclasses import dataclass

from dsec_blocks.cache.errors import InvalidCacheSetting

MIB = 2**20
SMALLEST_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """The limits of one fetch. `connections` None: chosen by the latency that is measured, up to `max_connections`."""

    connections: int | None = None
    max_connections: int = 32
    memory_bytes: int = 64 * MIB
    """Of all buffers together."""
    bandwidth_bytes_per_second: float | None = None
    patience_seconds: float = 60.0
    """How long a range is tried again without a single byte arriving, before the origin counts as unreachable."""

    def __post_init__(self) -> None:
        """Raises `InvalidCacheSetting`."""
        if self.max_connections < 1:
            raise InvalidCacheSetting(f"max_connections={self.max_connections}: a fetch needs at least 1 connection")
        if self.connections is not None and not 1 <= self.connections <= self.max_connections:
            raise InvalidCacheSetting(
                f"connections={self.connections}: give 1 to {self.max_connections} (max_connections), or leave it out"
            )
        if self.memory_bytes < 4 * SMALLEST_PIECE_BYTES:
            raise InvalidCacheSetting(f"memory_bytes={self.memory_bytes}: a fetch needs at least 256 KiB for buffers")
        if self.bandwidth_bytes_per_second is not None and self.bandwidth_bytes_per_second <= 0:
            raise InvalidCacheSetting(
                f"bandwidth_bytes_per_second={self.bandwidth_bytes_per_second}: give more than 0, or leave it out"
            )
        if self.patience_seconds < 0:
            raise InvalidCacheSetting(f"patience_seconds={self.patience_seconds}: give 0 or more")
