"""What a gang is told when it must leave, and what it reports back."""

from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """Why the gang must leave."""

    EVICT = "evict"
    CANCEL = "cancel"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Sent to every member in parallel; repeating it is harmless. `deadline` is in seconds since the epoch."""

    kind: NoticeKind
    reason: str
    deadline: float
    attempt: int
