"""Teams: who may use how much, with what weight, and which team they are part of.

Teams form a tree. A team with children is a *cohort*: what it owns itself is for all of them, and its limits bind
all of them together. Teams without a parent meet at the pool.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dsec_blocks.model.errors import InvalidRequest

DEFAULT_TEAM = "default"
MAX_NAME = 63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A Prefect work queue that the ledger knows.

    A team may always use `nominal_devices`; up to `borrow_devices` more when others leave them idle (None: as many
    as are idle). Others may borrow at most `lend_devices` of what it owns and does not use (None: all of it).
    `highest_priority` bounds what its runs may ask for, `user_devices` what one person may hold in it at a time.
    """

    name: str
    nominal_devices: int
    borrow_devices: int | None = None
    lend_devices: int | None = None
    weight: float = 1.0
    highest_priority: int = 100
    parent: str | None = None
    user_devices: int | None = None

    @property
    def limit_devices(self) -> int | None:
        """The most devices the team can ever hold at once by its own limit; None is no limit."""
        return None if self.borrow_devices is None else self.nominal_devices + self.borrow_devices


def check_team_name(name: str) -> str:
    """`name`, if a team (and its work queue) can be called that; raises `InvalidRequest` with the rule."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"team {name!r}: a team's name is letters, digits, '.', '_' and '-', begins with a letter or a digit and "
            f"has at most {MAX_NAME} of them; its work queue gets the same name"
        )
    return name


def path_to_root(name: str, teams: Mapping[str, Team]) -> Iterator[str]:
    """`name`, its parent, and so on; ends where a parent is unknown, or before a team that came already."""
    seen: set[str] = set()
    step: str | None = name
    while step is not None and step in teams and step not in seen:
        yield step
        seen.add(step)
        step = teams[step].parent


def check_tree(teams: Mapping[str, Team]) -> None:
    """Raises `InvalidRequest` when a parent is unknown, or a team is its own ancestor."""
    for team in teams.values():
        if team.parent is not None and team.parent not in teams:
            known = ", ".join(sorted(set(teams) - {team.name})) or "none yet"
            raise InvalidRequest(f"team {team.name}: its parent {team.parent!r} is no team; teams are {known}")
        path = list(path_to_root(team.name, teams))
        last = teams[path[-1]].parent
        if last is not None:
            circle = " → ".join([*path, last])
            raise InvalidRequest(f"team {team.name}: {circle} is a circle; give one of them another parent")


def children_of(name: str, teams: Iterable[Team]) -> list[str]:
    """The teams whose parent is `name`."""
    return sorted(team.name for team in teams if team.parent == name)
