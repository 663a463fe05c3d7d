"""How many connections, and how long a range: pure rules from the latency that was measured.

On a near store more connections only compete for the processor; with a wait before each answer they hide it, and they
add up where the store limits each connection (measured: 16 to 32 pay only with latency). Ranges are long, so that the
wait is small beside them, and get shorter towards the end, so that all connections end together.
"""

import os

from dsec_blocks.cache.transfer.settings import MIB, SMALLEST_PIECE_BYTES, TransferSettings

JOURNAL_BYTES = 8 * MIB
"""A range is noted as done in units of this size: what is fetched again after a kill is one unit a connection."""
_NEAR_SECONDS = 0.008
_FAR_SECONDS = 0.015
_LONGEST_RANGE = 64 * MIB
_SHORTEST_RANGE = 4 * MIB
_SHORTER_AT_THE_END = 2
_LARGEST_PIECE = 2 * MIB
_BYTES_PER_LATENCY_SECOND = 400e6


def connections_for(latency_seconds: float | None, settings: TransferSettings, *, cores: int | None = None) -> int:
    """The number of connections to use; the near one as long as nothing was measured."""
    if settings.connections is not None:
        wanted = settings.connections
    elif latency_seconds is None or latency_seconds < _NEAR_SECONDS:
        wanted = max(4, min(16, 2 * (cores or os.cpu_count() or 1)))
    else:
        wanted = 16 if latency_seconds < _FAR_SECONDS else 32
    affordable = max(1, settings.memory_bytes // SMALLEST_PIECE_BYTES - 2)
    return min(wanted, settings.max_connections, affordable)


def piece_bytes(settings: TransferSettings, *, buffers: int) -> int:
    """The size of one buffer when there may be `buffers` of them."""
    size = min(_LARGEST_PIECE, settings.memory_bytes // buffers)
    return max(SMALLEST_PIECE_BYTES, size // SMALLEST_PIECE_BYTES * SMALLEST_PIECE_BYTES)


def range_bytes(*, left_bytes: int, connections: int, latency_seconds: float | None, is_first: bool = False) -> int:
    """How long the next range of an object should be of which `left_bytes` are not yet asked for.

    `connections` are those that share the object, or soon will. Until the latency is known nobody knows how many those
    are, and no range is long; the first of all is there to measure by. Each next one is an equal share of what is left,
    so that each is shorter than the one before. The last bytes are dealt among all of them, in ranges that are short
    for the latency: who would ask for none of them only waits until the others are done.
    """
    if is_first:
        return min(left_bytes, SMALLEST_PIECE_BYTES)
    shortest = max(_SHORTEST_RANGE, int((latency_seconds or 0.0) * _BYTES_PER_LATENCY_SECOND))
    sharing = max(1, connections)
    if left_bytes < sharing * shortest:
        length = max(shortest // _SHORTER_AT_THE_END, left_bytes // sharing)
    else:
        longest = _LONGEST_RANGE if latency_seconds is not None else 2 * _SHORTEST_RANGE
        length = max(shortest, min(longest, left_bytes // sharing))
    return min(left_bytes, -(-length // SMALLEST_PIECE_BYTES) * SMALLEST_PIECE_BYTES)
