"""How full the cluster level may get: above the high mark, what was used longest ago goes, down to the low mark.

Pure. A content that was used just now stays, whatever the marks say: a node may be reading it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsec_blocks.cache.errors import InvalidCacheSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Shares of the limit, and how long a content is safe after its last use."""

    limit_bytes: int
    high: float = 0.95
    low: float = 0.85
    idle_seconds: float = 600.0

    def __post_init__(self) -> None:
        """Raises `InvalidCacheSetting`."""
        if self.limit_bytes <= 0 or not 0 < self.low <= self.high <= 1:
            raise InvalidCacheSetting(
                f"watermarks of the cluster level: give a limit above 0 and 0 < low ≤ high ≤ 1, not {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One content as the level holds it; `is_named`: some object's record points to it."""

    digest: str
    size_bytes: int
    used_at: float
    is_named: bool


def victims(held: Sequence[Held], marks: Watermarks, *, need_bytes: int, now: float) -> list[Held] | None:
    """What to remove so that `need_bytes` fit; None if they do not fit even then. Nameless contents go first."""
    total = sum(one.size_bytes for one in held) + need_bytes
    idle = [one for one in held if now - one.used_at >= marks.idle_seconds]
    chosen: list[Held] = []
    is_over = total > marks.high * marks.limit_bytes
    for one in sorted(idle, key=lambda one: (one.is_named, one.used_at, one.digest)):
        if not one.is_named or (is_over and total > marks.low * marks.limit_bytes):
            chosen.append(one)
            total -= one.size_bytes
    return chosen if total <= marks.limit_bytes else None
