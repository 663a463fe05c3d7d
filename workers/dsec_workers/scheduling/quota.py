"""Teams' limits and shares, counted in whole devices of a trial.

One after-state serves admission, victims and rank alike: what the team would use *with* the gang being tested. Gangs
that are leaving no longer count, gangs that are promised devices do, so every device counts once.
"""

from collections.abc import Collection

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling.fleet import Floats, Ints
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import Snapshot

NO_LIMIT = 2**40


class Quota:
    """What every team uses in one trial, by team number; `use` changes it.

    Teams that only running gangs name (removed from the ledger since) own nothing and always borrow.
    """

    def __init__(self, snapshot: Snapshot, waiting_teams: Collection[str], policy: Policy) -> None:
        gone = {gang.team for gang in snapshot.gangs()} - snapshot.teams.keys()
        known = {**snapshot.teams, **{name: Team(name=name, nominal_devices=0) for name in gone}}
        self.teams = tuple(known[name] for name in sorted(known))
        self.number = {team.name: number for number, team in enumerate(self.teams)}
        self.nominal: Ints = np.array([team.nominal_devices for team in self.teams], np.int64)
        self.limit: Ints = np.array(
            [NO_LIMIT if team.limit_devices is None else team.limit_devices for team in self.teams], np.int64
        )
        self.used: Ints = np.zeros(len(self.teams), np.int64)
        for gang in snapshot.gangs():
            if not gang.evicting:
                self.used[self.number[gang.team]] += len(gang.placement.devices)
        active = {gang.team for gang in snapshot.gangs()} | set(waiting_teams)
        self.fair = self._fair_shares(active, int(np.count_nonzero(snapshot.fleet.device_usable)))
        self.past: Floats = np.zeros(len(self.teams))
        total = sum(value for name, value in snapshot.usage.items() if name in self.number)
        self.history = policy.history_weight if total > 0 else 0.0
        if total > 0:
            for name, value in snapshot.usage.items():
                if name in self.number:
                    self.past[self.number[name]] = value / total * np.count_nonzero(snapshot.fleet.device_usable)

    def _fair_shares(self, active: Collection[str], capacity: int) -> Floats:
        """Devices each team is due: its nominal, plus by weight what no active team is entitled to."""
        weights = np.array([team.weight if team.name in active else 0.0 for team in self.teams], float)
        entitled = sum(team.nominal_devices for team in self.teams if team.name in active)
        surplus = max(0, capacity - entitled)
        parts = weights / weights.sum() if weights.sum() > 0 else weights
        due: Floats = np.maximum(self.nominal + parts * surplus, 1e-9)
        return due

    def use(self, team: int, devices: int) -> None:
        """The team uses so many more devices (fewer, when negative)."""
        self.used[team] += devices

    def borrowed(self) -> Ints:
        """Devices each team uses beyond its nominal quota; negative is unused quota."""
        return self.used - self.nominal

    def ceiling(self, team: int, request: GangRequest) -> int:
        """The most devices the team may use with this gang: gangs that nobody may evict never borrow."""
        return int(self.limit[team] if request.evictable else min(self.nominal[team], self.limit[team]))

    def shares(self, teams: Ints, needs: Ints) -> Floats:
        """After-state share ÷ fair share in [0, 1] of gangs of `needs` devices in `teams`, past usage mixed in."""
        now = (self.used[teams] + needs) * (1.0 - self.history) + self.past[teams] * self.history
        return np.clip(now / self.fair[teams], 0.0, 1.0)
