"""The policies by the names that a form and a command use."""

from collections.abc import Callable

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.eviction.ordered import Fifo, Lru
from dsec_blocks.cache.eviction.policy import EvictionPolicy
from dsec_blocks.cache.eviction.s3fifo import S3Fifo
from dsec_blocks.cache.eviction.scored import FrequencySize, Gdsf

DEFAULT_POLICY = "s3-fifo"
POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "s3-fifo": S3Fifo,
    "gdsf": Gdsf,
    "freq-size": FrequencySize,
    "lru": Lru,
    "fifo": Fifo,
}


def open_policy(name: str, *, capacity_bytes: int) -> EvictionPolicy:
    """A policy that knows no bundle yet.

    Raises `InvalidCacheSetting` for an unknown name.
    """
    make = POLICIES.get(name)
    if make is None:
        raise InvalidCacheSetting(f"policy: {name!r} is no eviction policy; choose one of {', '.join(POLICIES)}")
    return make(capacity_bytes)
