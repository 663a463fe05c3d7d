"""What it takes to open a node's cache without Prefect: plain values, refused at once where they cannot work."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.eviction import DEFAULT_POLICY, POLICIES
from dsec_blocks.cache.origins import OriginCredentials
from dsec_blocks.cache.store.store import DEFAULT_FREE_BYTES, Limits, limits_in_use
from dsec_blocks.cache.transfer.settings import TransferSettings
from dsec_blocks.gateways.home import home_of
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.names import ENV_CACHE_DIR, ENV_CACHE_LIMIT
from dsec_blocks.model.units import parse_memory


class Revalidate(StrEnum):
    """When an address that is resident is compared with its origin again. One that names a commit never is."""

    ALWAYS = "always"
    TTL = "ttl"
    NEVER = "never"


DEFAULT_TTL_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """One node's cache."""

    directory: Path
    limits: Limits = field(default_factory=Limits)
    policy: str = DEFAULT_POLICY
    revalidate: Revalidate = Revalidate.TTL
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    credentials: OriginCredentials = field(default_factory=OriginCredentials)
    transfer: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        """Raises `InvalidCacheSetting`."""
        if self.policy not in POLICIES:
            raise InvalidCacheSetting(
                f"policy: {self.policy!r} is no eviction policy; choose one of {', '.join(POLICIES)}"
            )
        if not 0 <= self.ttl_seconds < float("inf"):
            raise InvalidCacheSetting(f"ttl: {self.ttl_seconds} is no number of seconds")


def from_environment(*, directory: Path | None = None, limit: str | None = None) -> CacheSettings:
    """The cache that commands and ranks use when nobody names a block: option, environment, what the cache was last
    filled with, default.

    Raises `InvalidCacheSetting` for a size without a unit.
    """
    home = home_of()
    root = (directory or Path(os.environ.get(ENV_CACHE_DIR) or home / "cache")).absolute()
    limits, policy = limits_in_use(root)
    text = limit or os.environ.get(ENV_CACHE_LIMIT)
    if text:
        limits = Limits(
            limit_bytes=parse_size(text, field_name="limit"),
            free_bytes=limits.free_bytes,
            free_inodes=limits.free_inodes,
        )
    return CacheSettings(directory=root, limits=limits, policy=policy)


def parse_size(text: str, *, field_name: str) -> int:
    """Bytes in `text`, for example `500GiB`. Raises `InvalidCacheSetting`."""
    try:
        return parse_memory(text, field=field_name)
    except InvalidRequest as error:
        raise InvalidCacheSetting(str(error)) from None


__all__ = [
    "DEFAULT_FREE_BYTES",
    "DEFAULT_TTL_SECONDS",
    "CacheSettings",
    "Revalidate",
    "from_environment",
    "parse_size",
]
