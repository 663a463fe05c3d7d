"""What one running gang can do for another: leave, give up members, or go elsewhere. One choice per gang."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dsec_blocks.model.gangs import MemberPlacement
from dsec_workers.scheduling.snapshot import RunningGang


class How(StrEnum):
    """The ways to make room, from the mildest."""

    MOVE = "move"
    SHRINK = "shrink"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Option:
    """One way in which the gang in `slot` makes room, and its price in thousandths of a device-second."""

    slot: int
    how: How
    cost: int
    released: int
    """Devices that its team no longer uses."""
    gone: frozenset[int] = frozenset()
    """Members that it gives up (when it shrinks), by index."""


def given_up(gang: RunningGang, option: Option) -> tuple[MemberPlacement, ...]:
    """The members that leave their nodes."""
    members = gang.placement.members
    if option.how is not How.SHRINK:
        return members
    return tuple(members[index] for index in sorted(option.gone))


def one_each(options: Iterable[Option]) -> bool:
    """Whether no gang is chosen twice."""
    seen: set[int] = set()
    for option in options:
        if option.slot in seen:
            return False
        seen.add(option.slot)
    return True
