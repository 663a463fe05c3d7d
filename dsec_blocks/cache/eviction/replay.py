"""A trace through a policy: what would have been on the disk when each request came."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsec_blocks.cache.eviction.policy import EvictionPolicy, nobody


class Request(NamedTuple):
    """One access to one item."""

    key: str
    size_bytes: int
    refetch_seconds: float = 0.0
    counts: bool = True
    """False for what warms the cache up, and for what no cache could serve."""


@dataclass(slots=True)
class Tally:
    """What came of a replay."""

    requests: int = 0
    hits: int = 0
    requested_bytes: int = 0
    hit_bytes: int = 0
    stall_seconds: float = 0.0
    """Seconds of refetching, summed over the misses."""

    @property
    def misses(self) -> int:
        """Requests that were not hits."""
        return self.requests - self.hits

    @property
    def hit_ratio(self) -> float:
        """Share of requests that found all they need."""
        return self.hits / self.requests if self.requests else 0.0

    @property
    def byte_hit_ratio(self) -> float:
        """Share of the bytes that were there."""
        return self.hit_bytes / self.requested_bytes if self.requested_bytes else 0.0

    @property
    def mean_stall_seconds(self) -> float:
        """Refetching seconds a request."""
        return self.stall_seconds / self.requests if self.requests else 0.0


def replay(requests: Iterable[Request], policy: EvictionPolicy, *, capacity_bytes: int) -> Tally:
    """Run the trace; an item larger than the whole cache passes it by."""
    tally = Tally()
    sizes: dict[str, int] = {}
    used = 0
    for key, size_bytes, refetch_seconds, counts in requests:
        is_hit = key in sizes
        if counts:
            tally.requests += 1
            tally.requested_bytes += size_bytes
            if is_hit:
                tally.hits += 1
                tally.hit_bytes += size_bytes
            else:
                tally.stall_seconds += refetch_seconds
        if is_hit:
            policy.hit(key)
            continue
        policy.miss(key)
        if size_bytes > capacity_bytes:
            continue
        while used + size_bytes > capacity_bytes:
            victim = policy.evict(spared=nobody)
            if victim is None:
                raise ValueError(f"{type(policy).__name__} finds nothing to evict with {used} bytes in use")
            used -= sizes.pop(victim)
        if policy.admit(key, size_bytes=size_bytes, refetch_seconds=refetch_seconds):
            sizes[key] = size_bytes
            used += size_bytes
    return tally
