"""The tree of teams as arrays: what each subtree uses, owns, may use at most, and is due.

A team's own runs are a leaf, numbered as the team is; a team with children is also a group above its leaf and theirs;
the pool is above all. So a cohort's own quota is its own runs' first, and its children borrow it like a sibling's. A
subtree owns the sum of what its teams own. What a subtree does not lend is out of the others' reach whether it is
used or not, so whoever is above counts the larger of the two (Kueue's KEP-79 keeps the same book). A stranded device
(in use, though nobody could take it: its node is cordoned, say) is part of the pool for as long as it is used.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dsec_blocks.model.teams import Team, path_to_root
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.shares import fill

NO_LIMIT = 2**40


class Tree:
    """The teams below one pool of `capacity` devices; `use` changes what is in use."""

    def __init__(self, teams: Sequence[Team], capacity: int) -> None:
        number = {team.name: index for index, team in enumerate(teams)}
        self.capacity = capacity
        by_name = {team.name: team for team in teams}
        cohorts = sorted({number[team.parent] for team in teams if team.parent in by_name})
        self.root = len(teams) + len(cohorts)
        self._order: list[int] | None = None
        group = {team: len(teams) + index for index, team in enumerate(cohorts)}
        self.path = [_path([number[name] for name in path_to_root(team.name, by_name)], group) for team in teams]
        """Per team, the nodes from its leaf up to the last below the pool."""
        self.nested = bool(cohorts) or any(team.lend_devices is not None for team in teams)
        """Whether anything but each team's own limit can bind it."""
        size = self.root + 1
        self.children: list[list[int]] = [[] for _ in range(size)]
        for child, parent in sorted({pair for path in self.path for pair in pairwise((*path, self.root))}):
            self.children[parent].append(child)
        self.nominal: Ints = np.zeros(size, np.int64)
        for team, path in zip(teams, self.path, strict=True):
            self.nominal[[*path, self.root]] += team.nominal_devices
        self.weight: Floats = np.ones(size)
        self.limit: Ints = np.full(size, NO_LIMIT, np.int64)
        self.kept: Ints = np.zeros(size, np.int64)
        """Devices of each subtree that nobody outside it can borrow."""
        for team in teams:
            node = group.get(number[team.name], number[team.name])
            self.weight[node] = team.weight
            if team.borrow_devices is not None:
                self.limit[node] = self.nominal[node] + team.borrow_devices
            if team.lend_devices is not None:
                self.kept[node] = max(0, int(self.nominal[node]) - team.lend_devices)
        self.bounded = bool(self.kept.any())
        """Whether the pool itself limits anybody: only where something must be left for those who keep it."""
        self._rooms: dict[int, int] = {}
        """By team, until what is in use changes."""
        self.stranded = 0
        self.strand(0)
        self._sides: dict[int, Ints] = {}
        self._against: dict[int, Ints] = {}
        self._all: list[Ints] = []
        self.used: Ints = np.zeros(size, np.int64)
        self.inside: Ints = np.zeros(size, np.int64)
        """What a node's limit counts: its children's use, or what they keep, whichever is more."""
        for node in self._upwards():
            for child in self.children[node]:
                self.inside[node] += max(int(self.inside[child]), int(self.kept[child]))
        depth = max((len(path) for path in self.path), default=0)
        self.levels: list[Ints] = [
            np.array([path[min(level, len(path) - 1)] for path in self.path], np.int64) for level in range(depth)
        ]
        """Per level, the node of each team's path there; short paths repeat their last."""
        self.upwards: list[Ints] = [np.array([*path, self.root], np.int64) for path in self.path]
        """Per team, its path and the pool."""
        above = np.zeros((len(self.path), size), bool)
        for index, path in enumerate(self.path):
            above[index, list(path)] = True
        levels = [above[:, nodes] for nodes in self.levels]
        self._shared: Bools = np.stack(levels, axis=1) if levels else np.zeros((0, 0, 0), bool)
        """Team × level × other team: whether the node of the other's path there is above the team too."""

    @classmethod
    def of(cls, teams: tuple[Team, ...], capacity: int) -> "Tree":
        """The tree of these teams with nothing in use."""
        tree = copy(_unused(teams, capacity))
        tree.used, tree.inside, tree.limit = tree.used.copy(), tree.inside.copy(), tree.limit.copy()
        tree._rooms = {}
        return tree

    def _upwards(self) -> list[int]:
        """Every node after all that are below it."""
        if self._order is None:
            self._order = self._sorted_upwards()
        return self._order

    def _sorted_upwards(self) -> list[int]:
        height = np.zeros(self.root + 1, np.int64)
        for path in self.path:
            for above, node in enumerate([*path, self.root]):
                height[node] = max(height[node], above)
        return [int(node) for node in np.argsort(height, kind="stable")]

    def use(self, team: int, devices: int) -> None:
        """The team's own runs use so many more devices."""
        self._rooms.clear()
        change = devices
        for node in (*self.path[team], self.root):
            self.used[node] += devices
            inside, kept = int(self.inside[node]), int(self.kept[node])
            self.inside[node] = inside + change
            change = max(inside + change, kept) - max(inside, kept)

    def strand(self, devices: int) -> None:
        """So many more (fewer) of the devices in use are stranded: whoever gives one up leaves it to nobody."""
        self._rooms.clear()
        self.stranded += devices
        if self.bounded:
            self.limit[self.root] = max(self.capacity + self.stranded, int(self.nominal[self.root]))

    def room(self, team: int) -> int:
        """Devices that the team may still use under all limits of its path; negative where it is over one."""
        found = self._rooms.get(team)
        if found is None:
            found = self._rooms[team] = self._room(team)
        return found

    def _room(self, team: int) -> int:
        room = int(self.limit[self.root] - self.inside[self.root])
        for node in reversed(self.path[team]):
            inside = int(self.inside[node])
            unlent = max(0, int(self.kept[node]) - inside)
            room = min(int(self.limit[node]) - inside, unlent + room)
        return room

    def sides(self, team: int) -> Ints:
        """Per other team, the highest node of its path that is not also above `team`; for `team` itself, its top."""
        found = self._sides.get(team)
        if found is None:
            mine = self.path[team]
            own = [next((n for n in reversed(path) if n not in mine), mine[-1]) for path in self.path]
            found = self._sides[team] = np.array(own, np.int64)
        return found

    def against(self, team: int) -> Ints:
        """Per other team, the node of `team`'s own path on its side of their common ancestor."""
        found = self._against.get(team)
        if found is None:
            mine = self.path[team]
            own = [next((n for n in reversed(mine) if n not in path), mine[-1]) for path in self.path]
            found = self._against[team] = np.array(own, np.int64)
        return found

    def against_all(self) -> Ints:
        """`against`, one row a team."""
        if not self._all:
            self._all.append(np.stack([self.against(team) for team in range(len(self.path))]))
        return self._all[0]

    def over_all(self) -> Ints:
        """`over`, one row a team."""
        beyond = self.used - self.nominal
        least: Ints = np.full(self._shared.shape[::2], NO_LIMIT, np.int64)
        for level, nodes in enumerate(self.levels):
            least = np.minimum(least, np.where(self._shared[:, level], NO_LIMIT, beyond[nodes][None, :]))
        return least

    def over(self, team: int) -> Ints:
        """Per other team, the least that any node of its path below the ancestor with `team` uses beyond its own."""
        shared = np.zeros(self.root + 1, bool)
        shared[list(self.path[team])] = True
        beyond = self.used - self.nominal
        least: Ints = np.full(len(self.path), NO_LIMIT, np.int64)
        for nodes in self.levels:
            least = np.minimum(least, np.where(shared[nodes], NO_LIMIT, beyond[nodes]))
        return least

    def below(self, team: int, other: int) -> tuple[int, ...]:
        """Nodes of the team's path below its common ancestor with `other`, leaf first; none for the same team."""
        theirs = self.path[other]
        return tuple(node for node in self.path[team] if node not in theirs)

    def sums(self, by_team: Floats) -> Floats:
        """Values of teams, added up over every subtree."""
        found: Floats = np.zeros(self.root + 1)
        for team, nodes in enumerate(self.upwards):
            found[nodes] += by_team[team]
        return found

    def fair_shares(self, wanted: Floats) -> Floats:
        """Devices that each node is due, had it no end of demand of its own; `wanted` by team, as far as limits let."""
        demand: Floats = np.zeros(self.root + 1)
        demand[: len(wanted)] = wanted
        for node in self._upwards():
            below = self.children[node]
            demand[node] = min(float(demand[below].sum()) if below else float(demand[node]), float(self.limit[node]))
        due: Floats = np.zeros(self.root + 1)
        due[self.root] = self.capacity
        for node in reversed(self._upwards()):
            below = self.children[node]
            if below:
                capacity = float(due[node])
                due[below] = fill(capacity, self.nominal[below].astype(float), demand[below], self.weight[below])[1]
        return due


@lru_cache(maxsize=16)
def _unused(teams: tuple[Team, ...], capacity: int) -> Tree:
    return Tree(teams, capacity)


def _path(teams: Sequence[int], group: Mapping[int, int]) -> tuple[int, ...]:
    groups = [group[team] for team in teams if team in group]
    return (teams[0], *groups)
