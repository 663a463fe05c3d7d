"""What every eviction policy understands, so that the store and the replay need to know none of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Spared = Callable[[str], bool]
"""Whether a bundle must stay whatever the policy thinks (somebody holds it)."""


@dataclass(slots=True)
class Item:
    """One bundle as a policy sees it."""

    size_bytes: int
    refetch_seconds: float
    """What it would cost to fetch the whole of it again."""
    frequency: float = 0
    """Hits since it was admitted; what a policy takes off as the price of staying is subtracted."""


class EvictionPolicy(Protocol):
    """A mutable opinion about resident bundles. No I/O, no clock: order is the order of the calls.

    The caller's cycle is: `hit(key)` if it is resident; else `miss(key)`, `evict()` until there is room, `admit(key)`.
    """

    def __contains__(self, key: str) -> bool:
        """Whether the policy believes that `key` is resident."""

    def resident(self) -> Mapping[str, int]:
        """Every bundle that the policy believes resident, with its bytes."""

    def hit(self, key: str) -> None:
        """A resident bundle was used; one that is not known is ignored."""

    def miss(self, key: str) -> None:
        """A bundle was wanted and is not there: what the policy remembers of it decides where it is admitted."""

    def admit(self, key: str, *, size_bytes: int, refetch_seconds: float) -> bool:
        """The bundle is about to be resident; False if the policy would rather not keep it."""

    def evict(self, *, spared: Spared) -> str | None:
        """The bundle to give up next, no longer resident for the policy; None if all that is left is spared."""

    def forget(self, key: str) -> None:
        """The bundle left for another reason; nothing is remembered of it."""

    def to_json(self) -> dict[str, Any]:
        """All it knows, JSON-ready."""

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Take over what `to_json` of the same policy wrote."""


def nobody(key: str) -> bool:
    """Spare nothing."""
    return False
