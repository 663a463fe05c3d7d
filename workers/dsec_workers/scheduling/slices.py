"""Where on a card a slice goes, so that what stays free is of use: MIG places profiles at few offsets only.

Two small slices in the wrong halves of a card leave most of its memory free and no room for any larger profile. A
slice therefore goes where the largest profile that still fits afterwards is largest, then where the most placements
are left, then at the lowest offset. A card is cut anew only while nobody is on it: slices are never moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dsec_blocks.model.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of slice: compute slices, memory units, the offsets it may start at, and how many a card may have."""

    compute: int
    size: int
    starts: tuple[int, ...]
    most: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model of card can be cut into."""

    compute: int
    memory_units: int
    profiles: Mapping[str, Profile]


H100_80GB = Geometry(
    compute=7,
    memory_units=8,
    profiles={
        "1g.10gb": Profile(1, 1, (0, 1, 2, 3, 4, 5, 6), 7, 10240),
        "1g.10gb+me": Profile(1, 1, (0, 1, 2, 3, 4, 5, 6), 1, 10240),
        "1g.20gb": Profile(1, 2, (0, 2, 4, 6), 4, 20480),
        "2g.20gb": Profile(2, 2, (0, 2, 4), 3, 20480),
        "3g.40gb": Profile(3, 4, (0, 4), 2, 40960),
        "4g.40gb": Profile(4, 4, (0,), 1, 40960),
        "7g.80gb": Profile(7, 8, (0,), 1, 81920),
    },
)
"""As the driver of an H100 80GB lists it (`nvidia-smi mig -lgip`, `-lgipp`)."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card that is cut, and the slices on it: (profile, offset), in use or reserved."""

    geometry: Geometry
    slices: tuple[tuple[str, int], ...] = field(default=())

    @property
    def compute_left(self) -> int:
        """Compute slices that no slice has."""
        return self.geometry.compute - sum(self.geometry.profiles[name].compute for name, _ in self.slices)

    @property
    def taken(self) -> frozenset[int]:
        """Memory units that slices have."""
        profiles = self.geometry.profiles
        return frozenset(unit for name, start in self.slices for unit in range(start, start + profiles[name].size))

    def placements(self) -> list[tuple[str, int]]:
        """Every slice that could be added."""
        taken, left = self.taken, self.compute_left
        return [
            (name, start)
            for name, profile in self.geometry.profiles.items()
            if profile.compute <= left and sum(held == name for held, _ in self.slices) < profile.most
            for start in profile.starts
            if taken.isdisjoint(range(start, start + profile.size))
        ]


def choose(card: Card, profile: str) -> int | None:
    """The offset for one more slice of `profile`; None if there is none.

    Raises `InvalidRequest` for a profile that the card does not know.
    """
    if profile not in card.geometry.profiles:
        known = ", ".join(card.geometry.profiles)
        raise InvalidRequest(f"share: this card has no profile {profile}; its profiles are {known}")
    starts = [start for name, start in card.placements() if name == profile]
    return min(starts, key=lambda start: (*_worth(place(card, profile, start)), start), default=None)


def _worth(card: Card) -> tuple[int, int]:
    """Less is better: the largest profile that still fits, and the placements that are left, both negated."""
    left = card.placements()
    profiles = card.geometry.profiles
    return -max((profiles[name].size * 8 + profiles[name].compute for name, _ in left), default=0), -len(left)


def place(card: Card, profile: str, start: int) -> Card:
    """The card with that slice.

    Raises `InvalidRequest` where it cannot be: two plans that saw the same room cannot both have it.
    """
    if (profile, start) not in card.placements():
        raise InvalidRequest(f"share: a slice {profile} cannot start at memory unit {start} beside {card.slices}")
    return replace(card, slices=tuple(sorted((*card.slices, (profile, start)), key=lambda held: held[1])))


def remove(card: Card, profile: str, start: int) -> Card:
    """The card without that slice, the one at that very offset."""
    if (profile, start) not in card.slices:
        raise InvalidRequest(f"share: there is no slice {profile} at memory unit {start}; there are {card.slices}")
    return replace(card, slices=tuple(held for held in card.slices if held != (profile, start)))
