"""The running gangs as arrays by slot, so that rights can be asked of all of them at once."""

import numpy as np

from dsec_workers.scheduling.cost import UNITS, eviction_cost, hand_over_seconds, move_cost, resize_cost
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.options import How, Option
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.snapshot import RunningGang, Snapshot
from dsec_workers.scheduling.time_sharing import level_of
from dsec_workers.scheduling.tree import NO_LIMIT


def protected(gang: RunningGang, policy: Policy, now: float) -> bool:
    """Whether the gang is within its minimum run: until its first commit after each start, bounded."""
    committed = gang.first_commit_at is not None and gang.first_commit_at >= gang.started_at
    return not committed and now - gang.started_at < policy.min_run_seconds


class Roster:
    """See the module. A trial changes `movable`, `devices` and `allowance` as it goes."""

    def __init__(self, snapshot: Snapshot, quota: Quota, policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        size = len(snapshot.running)
        self.priority: Ints = np.zeros(size, np.int64)
        self.team: Ints = np.zeros(size, np.int64)
        self.devices: Ints = np.zeros(size, np.int64)
        self.stranded: Ints = np.zeros(size, np.int64)
        """Devices of each that nobody could take (see `Tree`)."""
        self.level: Ints = np.zeros(size, np.int64)
        """Of time sharing; all 0 when it is off."""
        self.movable: Bools = np.zeros(size, bool)
        """Some gang may evict it at some time: evictable, not leaving, not promised."""
        self.exposed: Bools = np.zeros(size, bool)
        """Past its minimum run."""
        self.due: Bools = np.zeros(size, bool)
        """Passed on a condition whose time to leave has come."""
        self.spare: Ints = np.zeros(size, np.int64)
        """Members that it may be shrunk by."""
        self.unsettled: Bools = np.zeros(size, bool)
        """May be moved to other devices: not moved lately."""
        for slot, gang in enumerate(snapshot.running):
            if gang is not None:
                self._enter(slot, gang, quota)
        lately = snapshot.evicted_lately
        most = policy.evictions_per_team
        self.allowance: Ints = np.array(
            [NO_LIMIT if most is None else most - lately.get(team.name, 0) for team in quota.teams], np.int64
        )
        """Evictions that each team may still suffer."""
        self._costs: dict[int, int] = {}
        self._stranded_in = quota.stranded

    def _enter(self, slot: int, gang: RunningGang, quota: Quota) -> None:
        policy, now = self.policy, self.now
        self.priority[slot] = gang.request.priority
        self.team[slot] = quota.number[gang.team]
        self.devices[slot] = len(gang.placement.devices)
        self.stranded[slot] = quota.stranded(gang.placement.devices)
        self.level[slot] = level_of(gang, policy, now)
        self.movable[slot] = gang.request.evictable and not gang.evicting and not gang.promised
        self.exposed[slot] = not protected(gang, policy, now)
        until = gang.conditional_until
        self.due[slot] = until is not None and now >= until - hand_over_seconds(gang, policy)
        settled = gang.moved_at is not None and now - gang.moved_at < policy.move_interval_seconds
        self.unsettled[slot] = policy.consolidation and self.movable[slot] and not settled
        least = gang.request.min_nodes
        if policy.resizing and least is not None and self.movable[slot]:
            self.spare[slot] = max(0, len(gang.placement.members) - least)

    def gang(self, slot: int) -> RunningGang:
        """The gang in `slot`."""
        gang = self.snapshot.running[slot]
        assert gang is not None
        return gang

    def stranded_of(self, option: Option) -> int:
        """Devices among those that it gives up which nobody could take."""
        every = int(self.stranded[option.slot])
        if not every or option.how is not How.SHRINK:
            return every
        members = self.gang(option.slot).placement.members
        return sum(self._stranded_in(members[index].devices) for index in option.gone)

    def cost(self, slot: int) -> int:
        """Cost of evicting it, in thousandths of a device-second."""
        found = self._costs.get(slot)
        if found is None:
            found = self._costs[slot] = round(eviction_cost(self.gang(slot), self.policy, self.now) * UNITS)
        return found

    def cost_of_move(self, slot: int) -> int:
        """Cost of moving it, in the same unit."""
        return round(move_cost(self.gang(slot), self.policy, self.now) * UNITS)

    def cost_of_shrinking(self, slot: int, devices_left: int) -> int:
        """Cost of going on with fewer devices, in the same unit."""
        return round(resize_cost(self.gang(slot), devices_left, self.policy, self.now) * UNITS)
