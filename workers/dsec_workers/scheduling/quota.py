"""Teams' limits and shares, counted in whole devices of a trial.

One after-state serves admission, victims and rank alike: what the team would use *with* the gang being tested. Gangs
that are leaving no longer count, gangs that are promised devices do, so every device counts once.

Teams form a tree (`dsec_blocks.model.teams`). What a team may use is bounded on the whole path to the root: by the
borrowing limit of every ancestor, and by what siblings do not lend. Rights compare at the common ancestor: a side
that stays within what it owns may take back from teams that are over it at every step below that ancestor.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.holders import Holders, Slots
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import Snapshot
from dsec_workers.scheduling.tree import NO_LIMIT, Tree
from dsec_workers.scheduling.usage import charged_ahead, past_devices


class Quota:
    """What every team uses in one trial, by team number; `use` changes it.

    `asked` are the devices that each team's waiting gangs ask for. Teams that only running gangs name (removed from
    the ledger since) own nothing and always borrow.
    """

    def __init__(
        self, snapshot: Snapshot, asked: Mapping[str, int], policy: Policy, now: float, *, slots: Slots | None = None
    ) -> None:
        slots = slots or Holders(snapshot.fleet).update(snapshot.running)
        present = [slots.names[index] for index in np.unique(slots.team[slots.there]).tolist()]
        gone = set(present) - snapshot.teams.keys()
        known = {**snapshot.teams, **{name: Team(name=name, nominal_devices=0) for name in gone}}
        self.teams = tuple(known[name] for name in sorted(known))
        self.number = {team.name: number for number, team in enumerate(self.teams)}
        self.policy = policy
        self.tree = Tree.of(self.teams, int(np.count_nonzero(snapshot.fleet.device_usable)))
        self._fleet = snapshot.fleet
        count = len(self.teams)
        self.nominal: Ints = self.tree.nominal[:count]
        self.used: Ints = self.tree.used[:count]
        """What each team's own runs use (a view into the tree)."""
        self.users: dict[tuple[int, str], int] = {}
        """Devices in use by (team, person), of teams that limit what one person may hold."""
        self.wanted: Floats = np.array([asked.get(team.name, 0) for team in self.teams], float)
        numbers = np.array([self.number.get(name, 0) for name in slots.names] or [0], np.int64)
        self.team_of: Ints = numbers[slots.team]
        """Per slot, its team."""
        past = past_devices(snapshot.usage, self.number, policy)
        np.add.at(past, self.team_of[slots.there], charged_ahead(slots, policy, now)[slots.there])
        staying = slots.there & ~slots.evicting
        held = np.bincount(self.team_of[staying], slots.devices[staying], minlength=count).astype(np.int64)
        for team, devices in enumerate(held.tolist()):
            if devices:
                self.tree.use(team, devices)
        self.wanted += held
        if self.tree.bounded:
            self.tree.strand(int(slots.stranded[staying].sum()))
        if any(team.user_devices is not None for team in self.teams):
            for slot in np.flatnonzero(staying).tolist():
                gang = snapshot.running[slot]
                if gang is not None:
                    self._count_person(int(self.team_of[slot]), len(gang.placement.devices), gang.created_by)
        self.past: Floats = self.tree.sums(past)
        """Average devices lately, by node of the tree."""
        self._fair: Floats | None = None
        self.is_lifted = False
        """Whether an operator's order counts at the moment, and no limit."""

    @property
    def fair(self) -> Floats:
        """Devices that each node of the tree is due, had it no end of demand of its own."""
        if self._fair is None:
            self._fair = np.maximum(self.tree.fair_shares(self.wanted), 1e-9)
        return self._fair

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within this an operator's order counts and no limit does."""
        self.is_lifted = True
        try:
            yield
        finally:
            self.is_lifted = False

    def use(self, team: int, devices: int, user: str = "", *, asked: int = 0) -> None:
        """The team (and the person) uses so many more devices (fewer, when negative) of the `asked` it waited for."""
        self._count(team, devices, user)
        if devices > 0:
            ahead = devices * self.policy.charge_ahead_seconds / self.policy.usage_window_seconds
            self.past[self.tree.upwards[team]] += ahead
        if devices != asked:
            self.wanted[team] += devices - asked
            self._fair = None

    def _count(self, team: int, devices: int, user: str) -> None:
        self.tree.use(team, devices)
        self._count_person(team, devices, user)

    def _count_person(self, team: int, devices: int, user: str) -> None:
        if self.teams[team].user_devices is not None:
            self.users[team, user] = self.users.get((team, user), 0) + devices

    def stranded(self, devices: Iterable[str]) -> int:
        """How many of these nobody could take, were they free; 0 where that limits nobody."""
        if not self.tree.bounded:
            return 0
        known, usable = self._fleet.device_number, self._fleet.device_usable
        return sum(uuid not in known or not usable[known[uuid]] for uuid in devices)

    def forget(self, team: str, asked: int) -> None:
        """A waiting gang's demand does not count: it can never start as it is."""
        if team in self.number:
            self.wanted[self.number[team]] -= asked
            self._fair = None

    def borrowed(self) -> Ints:
        """Devices each team uses beyond its nominal quota; negative is unused quota."""
        return self.used - self.nominal

    def ceiling(self, team: int, request: GangRequest) -> int:
        """The most devices the team may use now with this gang: gangs that nobody may evict never borrow."""
        if self.is_lifted:
            return NO_LIMIT
        most = int(self.used[team]) + self.tree.room(team) if self.tree.nested else int(self.tree.limit[team])
        return most if request.evictable else min(int(self.nominal[team]), most)

    def highest(self, team: int, request: GangRequest) -> int:
        """The most devices the team could use with this gang if nobody else used any."""
        most = min(int(self.tree.limit[node]) for node in self.tree.path[team])
        if self.teams[team].user_devices is not None:
            most = min(most, int(self.teams[team].user_devices or 0))
        return most if request.evictable else min(int(self.nominal[team]), most)

    def user_room(self, team: int, user: str) -> int:
        """Devices that this person may still get in the team."""
        most = self.teams[team].user_devices
        return NO_LIMIT if most is None or self.is_lifted else most - self.users.get((team, user), 0)

    # ---- rights: judged at the common ancestor ----------------------------------------------------------------

    def within(self, team: int, devices: int) -> Bools:
        """Per other team: whether this one's side of their common ancestor, with `devices` more, uses what it owns."""
        side = self.tree.against(team)
        found: Bools = self.tree.used[side] + devices <= self.tree.nominal[side]
        return found

    def within_each(self, teams: Ints, needs: Ints, other: int) -> Bools:
        """The same for gangs of many teams against one."""
        side = self.tree.sides(other)[teams]
        found: Bools = self.tree.used[side] + needs <= self.tree.nominal[side]
        return found

    def over(self, team: int) -> Ints:
        """Per other team: by how much it is over what it owns at every step below its common ancestor with this one.

        Only what is more than 0 before an eviction may be reclaimed.
        """
        return self.tree.over(team)

    def steps_over(self, other: int, team: int) -> tuple[tuple[int, int], ...]:
        """(node, devices beyond its own) on the path of `other` below its common ancestor with `team`."""
        return tuple((n, int(self.tree.used[n] - self.tree.nominal[n])) for n in self.tree.below(other, team))

    def missing(
        self, team: int, request: GangRequest, devices: int, leaving: Mapping[int, int], *, stranded: int = 0
    ) -> int:
        """Devices that limits still forbid `team`, once those of `leaving` (by team) and the `stranded` have gone."""
        if self.is_lifted:
            return 0
        for other, count in leaving.items():
            self.tree.use(other, -count)
        self.tree.strand(-stranded)
        missing = int(self.used[team]) + devices - self.ceiling(team, request)
        for other, count in leaving.items():
            self.tree.use(other, count)
        self.tree.strand(stranded)
        return max(0, missing)

    # ---- rank -------------------------------------------------------------------------------------------------

    def shares(self, teams: Ints, needs: Ints) -> Floats:
        """After-state share ÷ fair share in [0, 1], the largest over each team's path, past usage mixed in."""
        history, fair = self.policy.history_weight, self.fair
        mixed = self.tree.used * (1.0 - history) + self.past * history
        more = needs * (1.0 - history)
        worst: Floats = (mixed[teams] + more) / fair[teams]
        for nodes in self.tree.levels[1:]:
            node = nodes[teams]
            worst = np.maximum(worst, (mixed[node] + more) / fair[node])
        return np.minimum(np.maximum(worst, 0.0), 1.0)
