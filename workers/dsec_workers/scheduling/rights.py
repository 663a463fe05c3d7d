"""Who may make whom give way. Base priority decides, never rank: a rank moves with time and would let two take turns.

*Priority*: victims of strictly lower base priority; if the preemptor's team would borrow, only its own gangs and
those of teams that are borrowing before each eviction. *Reclaim*: a preemptor whose team, itself included, stays
within nominal quota may also evict gangs of any base priority from other teams that are borrowing before each
eviction. In a tree both are judged below the ancestor that the two teams share (see `Quota`). Whether the team would
borrow is judged before any eviction of its own gangs: nobody buys rights over others by evicting itself. *Time
sharing* (a policy): an equal base priority counts as lower when its level is greater.

Borrowing comes and goes, so these rules alone let a gang reclaim from a borrower, its team then borrow with another
gang, and the borrower come back by priority. Hence *once is enough*: a gang evicts none that it was itself evicted
for. What levels decide is exempt, because a level only ever falls.

*Moving* takes nothing away: any gang of no higher base priority may be asked. What happens to a gang counts only past
its minimum run, and no team suffers more evictions than the policy's rate.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.options import How, Option, one_each
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A gang that wants room: what decides its rights."""

    team: int
    priority: int
    devices: int
    request: GangRequest
    level: int = 0
    spared: frozenset[int] = frozenset()
    """Slots of the gangs that it was once evicted for."""


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
    lower: Bools
    """Slots that give way to it by base priority, or by level."""
    may_move: Bools
    """Slots that may be moved for it."""

    @classmethod
    def of(cls, claim: Claim, roster: Roster, quota: Quota, conditional: Bools) -> "Rights":
        """The rights of `claim` as the trial stands."""
        by_level = (roster.priority == claim.priority) & (roster.level > claim.level)
        if claim.spared:
            conditional = conditional.copy()
            conditional[list(claim.spared)] = False
        return cls(
            claim=claim,
            roster=roster,
            quota=quota,
            over=quota.over(claim.team),
            within=quota.within(claim.team, claim.devices),
            shortage=quota.missing(claim.team, claim.request, claim.devices, {}),
            conditional=conditional,
            lower=(roster.priority < claim.priority) | by_level,
            may_move=roster.unsettled & roster.movable & roster.exposed & (roster.priority <= claim.priority),
        )

    def candidates(self) -> Bools:
        """Slots that some admissible set of victims might contain."""
        roster, claim = self.roster, self.claim
        own, lower = roster.team == claim.team, self.lower
        within = self.within[roster.team]
        borrowing = (self.over > 0)[roster.team]
        allowed = (lower & (own | borrowing | within)) | (~own & borrowing & within)
        allowed &= roster.exposed & (roster.allowance > 0)[roster.team]
        for slot in claim.spared:
            allowed[slot] &= self._by_level(slot)
        found: Bools = roster.movable & (allowed | self.conditional)
        return found

    def _by_level(self, slot: int) -> bool:
        """Whether it may evict that gang for its level alone."""
        roster = self.roster
        return bool(roster.priority[slot] == self.claim.priority and roster.level[slot] > self.claim.level)

    def admissible(self, victims: Collection[Option]) -> bool:
        """Whether this whole set may be taken for the claim, in some order, and its team is then within its limit."""
        if not self.tolerable(victims):
            return False
        stranded = sum(self.roster.stranded_of(option) for option in victims)
        if not self.shortage and not stranded:
            return True
        leaving: dict[int, int] = {}
        for option in victims:
            team = int(self.roster.team[option.slot])
            leaving[team] = leaving.get(team, 0) + option.released
        claim = self.claim
        return not self.quota.missing(claim.team, claim.request, claim.devices, leaving, stranded=stranded)

    def relieving(self, slots: Bools) -> Bools:
        """Those of `slots` whose eviction could bring the claim's team under a limit."""
        if not self.shortage:
            return np.zeros(len(slots), bool)
        return slots if self.quota.tree.nested else slots & (self.roster.team == self.claim.team)

    def is_out_of_reach(self, relieving: Bools) -> bool:
        """Whether the claim's team stays over a limit even if all of `relieving()` leave: then no victims help it.

        In a tree of teams the limit may be one of its own branch, where none of them uses anything.
        """
        if not self.shortage or not self.quota.tree.nested:
            return False
        leaving: dict[int, int] = {}
        for slot in np.flatnonzero(relieving).tolist():
            team = int(self.roster.team[slot])
            leaving[team] = leaving.get(team, 0) + int(self.roster.devices[slot])
        return bool(self.quota.missing(self.claim.team, self.claim.request, self.claim.devices, leaving))

    def tolerable(self, victims: Collection[Option]) -> bool:
        """Whether these may all be taken, in some order; if not, no larger set may either.

        Each is one of `candidates()`, or is only moved and one of `may_move`.
        """
        if not one_each(victims) or not self._within_rate(victims):
            return False
        roster, claim = self.roster, self.claim
        chains: dict[int, list[int]] = {}
        for option in victims:
            slot = option.slot
            if option.how is How.MOVE or self.conditional[slot]:
                continue
            team, lower = int(roster.team[slot]), bool(self.lower[slot])
            within = bool(self.within[team])
            if team == claim.team:
                if not lower:
                    return False
            elif not (within or lower):
                return False
            elif not (within and lower):
                chains.setdefault(team, []).append(option.released)
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

    def _within_rate(self, victims: Iterable[Option]) -> bool:
        if self.roster.policy.evictions_per_team is None:
            return True
        count: dict[int, int] = {}
        for option in victims:
            if option.how is How.EVICT and not self.conditional[option.slot]:
                team = int(self.roster.team[option.slot])
                count[team] = count.get(team, 0) + 1
        return all(number <= self.roster.allowance[team] for team, number in count.items())
