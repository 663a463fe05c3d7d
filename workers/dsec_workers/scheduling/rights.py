"""Who may evict whom. Base priority decides, never rank: a rank moves with time and would let two gangs take turns.

*Priority*: victims of strictly lower base priority; if the preemptor's team would borrow, only its own gangs and
those of teams that are borrowing before each eviction. *Reclaim*: a preemptor whose team, itself included, stays
within nominal quota may also evict gangs of any base priority from other teams that are borrowing before each
eviction. Whether the team would borrow is judged before any eviction of its own gangs: nobody buys rights over
others by evicting itself. Every victim taken by borrowing leaves a team that would again borrow by taking it back,
so it cannot reclaim its way back.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.cost import UNITS, eviction_cost, hand_over_seconds
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.snapshot import RunningGang, Snapshot


def protected(gang: RunningGang, policy: Policy, now: float) -> bool:
    """Whether the gang is within its minimum run: until its first commit after each start, bounded."""
    committed = gang.first_commit_at is not None and gang.first_commit_at >= gang.started_at
    return not committed and now - gang.started_at < policy.min_run_seconds


class Roster:
    """The running gangs as arrays by slot, for asking all of them at once."""

    def __init__(self, snapshot: Snapshot, quota: Quota, policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        size = len(snapshot.running)
        self.priority: Ints = np.zeros(size, np.int64)
        self.team: Ints = np.zeros(size, np.int64)
        self.devices: Ints = np.zeros(size, np.int64)
        self.movable: Bools = np.zeros(size, bool)
        """Some gang may evict it at some time: evictable, not leaving, not promised."""
        self.exposed: Bools = np.zeros(size, bool)
        """Past its minimum run."""
        self.due: Bools = np.zeros(size, bool)
        """Passed on a condition whose time to leave has come."""
        for slot, gang in enumerate(snapshot.running):
            if gang is None:
                continue
            self.priority[slot] = gang.request.priority
            self.team[slot] = quota.number[gang.team]
            self.devices[slot] = len(gang.placement.devices)
            self.movable[slot] = gang.request.evictable and not gang.evicting and not gang.promised
            self.exposed[slot] = not protected(gang, policy, now)
            until = gang.conditional_until
            self.due[slot] = until is not None and now >= until - hand_over_seconds(gang, policy)
        self._costs: dict[int, int] = {}

    def gang(self, slot: int) -> RunningGang:
        """The gang in `slot`."""
        gang = self.snapshot.running[slot]
        assert gang is not None
        return gang

    def cost(self, slot: int) -> int:
        """Cost of evicting it, in thousandths of a device-second."""
        found = self._costs.get(slot)
        if found is None:
            found = self._costs[slot] = round(eviction_cost(self.gang(slot), self.policy, self.now) * UNITS)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A gang that wants room: what decides its rights."""

    team: int
    priority: int
    devices: int
    request: GangRequest


@dataclass(frozen=True, slots=True)
class Rights:
    """What one claim may do in one state of a trial."""

    claim: Claim
    roster: Roster
    quota: Quota
    over: Ints
    """Per team, devices in use beyond its own below the common ancestor, before any of this claim's evictions."""
    within: Bools
    """Per team, whether the claim's side of the common ancestor uses what it owns, before any eviction."""
    shortage: int
    """Devices that must go for the limits of the claim's team, before any placement."""
    conditional: Bools
    """Slots that it may evict as the holder that they passed."""

    @classmethod
    def of(cls, claim: Claim, roster: Roster, quota: Quota, conditional: Bools) -> "Rights":
        """The rights of `claim` as the trial stands."""
        return cls(
            claim=claim,
            roster=roster,
            quota=quota,
            over=quota.over(claim.team),
            within=quota.within(claim.team, claim.devices),
            shortage=quota.missing(claim.team, claim.request, claim.devices, {}),
            conditional=conditional,
        )

    def candidates(self) -> Bools:
        """Slots that some admissible set of victims might contain."""
        roster, claim = self.roster, self.claim
        own, lower = roster.team == claim.team, roster.priority < claim.priority
        within = self.within[roster.team]
        borrowing = (self.over > 0)[roster.team]
        allowed = (lower & (own | borrowing | within)) | (~own & borrowing & within)
        found: Bools = roster.movable & ((roster.exposed & allowed) | self.conditional)
        return found

    def admissible(self, victims: Collection[int]) -> bool:
        """Whether this whole set may be evicted for the claim, in some order, and its team is then within its limit."""
        if not self.tolerable(victims):
            return False
        if not self.shortage:
            return True
        leaving: dict[int, int] = {}
        for slot in victims:
            team = int(self.roster.team[slot])
            leaving[team] = leaving.get(team, 0) + int(self.roster.devices[slot])
        return not self.quota.missing(self.claim.team, self.claim.request, self.claim.devices, leaving)

    def relieving(self, slots: Bools) -> Bools:
        """Those of `slots` whose eviction could bring the claim's team under a limit."""
        if not self.shortage:
            return np.zeros(len(slots), bool)
        return slots if self.quota.tree.nested else slots & (self.roster.team == self.claim.team)

    def tolerable(self, victims: Iterable[int]) -> bool:
        """Whether these may all be evicted, in some order; if not, no larger set may either."""
        roster, claim = self.roster, self.claim
        chains: dict[int, list[int]] = {}
        for slot in victims:
            if self.conditional[slot]:
                continue
            team, lower = int(roster.team[slot]), bool(roster.priority[slot] < claim.priority)
            within = bool(self.within[team])
            if team == claim.team:
                if not lower:
                    return False
            elif not (within or lower):
                return False
            elif not (within and lower):
                chains.setdefault(team, []).append(int(roster.devices[slot]))
        # Smallest first, the team must still be borrowing before the last and largest eviction; so must whatever it
        # is part of, below the ancestor that it shares with the claim.
        if not self.quota.tree.nested:
            return all(sum(sizes) - max(sizes) < self.over[team] for team, sizes in chains.items())
        steps: dict[int, tuple[int, int, int]] = {}
        for team, sizes in chains.items():
            for node, beyond in self.quota.steps_over(team, claim.team):
                total, largest, _ = steps.get(node, (0, 0, 0))
                steps[node] = (total + sum(sizes), max(largest, *sizes), beyond)
        return all(total - largest < beyond for total, largest, beyond in steps.values())
