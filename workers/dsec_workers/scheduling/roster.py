"""The running gangs as arrays by slot, so that rights can be asked of all of them at once."""

import numpy as np

from dsec_workers.scheduling.cost import UNITS, eviction_cost, move_cost, resize_cost
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.options import How, Option
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.snapshot import RunningGang, Snapshot
from dsec_workers.scheduling.time_sharing import levels_of
from dsec_workers.scheduling.tree import NO_LIMIT


class Roster:
    """See the module. A trial changes `movable`, `devices` and `allowance` as it goes."""

    def __init__(self, snapshot: Snapshot, slots: Slots, quota: Quota, policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        ran = now - slots.started_at
        self.priority: Ints = slots.priority
        self.team: Ints = quota.team_of
        self.devices: Ints = slots.devices
        self.stranded: Ints = slots.stranded if quota.tree.bounded else np.zeros(len(slots.there), np.int64)
        """Devices of each that nobody could take (see `Tree`)."""
        self.level: Ints = levels_of(slots, policy, now)
        """Of time sharing; all 0 when it is off."""
        self.movable: Bools = slots.evictable & ~slots.evicting & ~slots.promised
        """Some gang may evict it at some time: evictable, not leaving, not promised."""
        committed = slots.first_commit_at >= slots.started_at
        self.exposed: Bools = slots.there & (committed | (ran >= policy.min_run_seconds))
        """Past its minimum run: until its first commit after each start, bounded."""
        checkpoint = np.where(np.isnan(slots.checkpoint), policy.checkpoint_seconds, slots.checkpoint)
        self.hand_over: Floats = checkpoint + slots.grace
        """Seconds from the notice until its devices are free, at most; see `cost.hand_over_seconds`."""
        self.due: Bools = slots.there & (now >= slots.conditional_until - self.hand_over)
        """Passed on a condition whose time to leave has come."""
        self.settled: Bools = slots.there & (now - slots.moved_at < policy.move_interval_seconds)
        """Moved or resized lately."""
        self.unsettled: Bools = self.movable & ~self.settled if policy.consolidation else np.zeros_like(self.movable)
        """May be moved to other devices."""
        self.spare: Ints = np.zeros(len(slots.there), np.int64)
        """Members that it may be shrunk by."""
        if policy.resizing:
            elastic = self.movable & ~self.settled & (slots.least > 0)
            self.spare[elastic] = np.maximum(0, slots.members - slots.least)[elastic]
        lately = snapshot.evicted_lately
        most = policy.evictions_per_team
        self.allowance: Ints = np.array(
            [NO_LIMIT if most is None else most - lately.get(team.name, 0) for team in quota.teams], np.int64
        )
        """Evictions that each team may still suffer."""
        self._costs: dict[int, int] = {}
        self._stranded_in = quota.stranded

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
