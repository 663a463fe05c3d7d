"""In which order the waiting are tried: a weighted sum of factors that everybody can read.

rank = w_priority·P + w_age·age + w_share·(1 − share) + w_gap·fit + w_depth·depth + w_small·small, all in [0, 1]:

- P: base priority ÷ the policy's priority scale;
- age: eligible wait ÷ max_age, once the gang has been overtaken (see `overtaking`). It counts from the scheduled time,
  which survives evictions. Where a line is long nearly all of it is old, and an order by age alone would be first come,
  first served: who waits for his elders waits his turn, and until then the rest decides;
- share: the team's after-state share ÷ its fair share (`Quota.shares`);
- fit: devices free in the gang's resource pool ÷ devices it needs, so a small gap counts for it;
- depth: the team's part of all that wait;
- small: 1 ÷ devices, since nobody knows a duration.
- level, where time sharing is on: taken off for every level that the run has fallen.

Past max_age a team's oldest gang, once it has been overtaken, leaves this order and stands in front, by first submit
time alone. Gangs that differ only in age form a *class* and keep their order among themselves, so a cycle ranks
classes, not gangs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Floats, Ints, ResourcePool
from dsec_workers.scheduling.placement import Shape
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.quota import Quota
from dsec_workers.scheduling.shapes import MemberShape
from dsec_workers.scheduling.snapshot import QueuedGang

FIRST_FEW = 64
"""Classes put in order at a time: most admissions come from the best few."""


@dataclass(eq=False, slots=True)
class GangClass:
    """Waiting gangs that differ in age alone: the same request, team and history of trouble."""

    request: GangRequest
    team: int
    pool: ResourcePool
    least: Shape
    """The smallest shape it accepts."""
    member: MemberShape
    """What each member asks of its node."""
    asks: int
    """Number of what it asks for; classes that ask for the same lack the same."""
    gangs: list[int]
    """Numbers of the gangs, first in order first."""
    backing_off_until: float | None = None
    parent: str | None = None
    user: str = ""
    """The person, where the team limits what one may hold."""
    whole: ResourcePool | None = None
    """Its resource pool with what is withheld from it, where anything is."""
    withheld_by: str = ""
    """By whose order, in words."""
    ordered: bool = False
    """An operator wants it started now, whatever its rank and its team's limits (a class of one)."""
    level: int = 0
    """Of time sharing; 0 comes first."""
    evicted_for: tuple[str, ...] = ()
    """Gangs that these were evicted for, and never evict in turn."""
    never_evicted_by: tuple[str, ...] = ()
    """Waiting gangs that were evicted for these, and so cannot ask them to leave."""
    leaving_for: bool = False
    """Others are already being evicted for this gang (a class of one)."""
    told: tuple[tuple[int, int], Reason] | None = None
    """What its team used and might use when a reason was last made of that, and the reason."""
    special: bool = False
    """Whether there may be more to why it waits than limits and room."""
    next: int = 0
    """Index in `gangs` of the first that is still undecided."""


def narrow(numbers: Ints) -> npt.NDArray[np.unsignedinteger]:
    """The same numbers, none below 0, in as few bytes as hold them: one or two are sorted without comparing."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _by_rank(ranks: Ints) -> Ints:
    """The places of numbers that all differ, none below 0 and none very large, from the least number to the most."""
    place = np.full(int(ranks.max(initial=-1)) + 1, -1, np.int64)
    place[ranks] = np.arange(len(ranks))
    return place[place >= 0]


@dataclass(frozen=True, eq=False, slots=True)
class Ages:
    """How old each gang of a queue is; with time sharing a gang that has run waits anew whenever it comes back."""

    age: Floats
    """Eligible wait ÷ max_age, at most 1; 0 while it does not count."""
    seniority: Ints
    """Larger for gangs that were submitted later, then by id: the tie-break everywhere."""

    @classmethod
    def of(cls, since: Floats, counts: Bools, seniority: Ints, policy: Policy, now: float) -> "Ages":
        """Of gangs that wait since then, and whether that counts."""
        return cls(np.minimum(1.0, np.maximum(0.0, now - since) / policy.max_age_seconds) * counts, seniority)


class Order:
    """The waiting, ranked anew after every admission: what a cycle asks for its next gang."""

    def __init__(
        self,
        queue: Sequence[QueuedGang],
        classes: Sequence[GangClass],
        class_of: Ints,
        ages: Ages,
        quota: Quota,
        policy: Policy,
        run_ids: npt.NDArray[Any],
    ) -> None:
        self.run_ids = run_ids
        self.queue, self.classes, self.quota, self.policy = queue, classes, quota, policy
        self.class_of: Ints = class_of
        self.age, self.seniority = ages.age, ages.seniority
        count = len(queue)
        self.undecided = np.ones(count, bool)
        by_seniority = _by_rank(self.seniority)
        by_age = by_seniority[np.argsort(-self.age[by_seniority], kind="stable")]
        by_age = by_age[np.argsort(narrow(class_of[by_age]), kind="stable")]
        ends = np.cumsum(np.bincount(class_of, minlength=len(classes))).tolist()
        numbers, start = by_age.tolist(), 0
        for kind, end in zip(classes, ends, strict=True):
            kind.gangs, kind.next, start = numbers[start:end], 0, end
        self.team: Ints = np.array([kind.team for kind in classes], np.int64)
        self.need: Ints = np.array([kind.request.devices for kind in classes], np.int64)
        self.small: Floats = 1.0 / np.maximum(self.need, 1)
        self.head: Ints = np.array([kind.gangs[0] for kind in classes], np.int64)
        self.priority: Floats = np.minimum(
            1.0, np.array([kind.request.priority for kind in classes], float) / policy.priority_scale
        )
        labels = {kind.pool.label: number for number, kind in enumerate(classes)}
        self.pools = {label: classes[number].pool for label, number in labels.items()}
        pool_number = {label: number for number, label in enumerate(self.pools)}
        self.pool: Ints = np.array([pool_number[kind.pool.label] for kind in classes], np.int64)
        self.open = np.ones(len(classes), bool)
        """Classes with an undecided gang that has not been refused in this state."""
        self.remaining = np.ones(len(classes), bool)
        """Classes with an undecided gang."""
        self.level: Ints = np.array([kind.level for kind in classes], np.int64)
        self.base_priority: Ints = np.array([kind.request.priority for kind in classes], np.int64)
        self.waiting: Ints = (
            np.bincount(self.team[self.class_of], minlength=len(quota.teams))
            if count
            else np.zeros(len(quota.teams), np.int64)
        )
        # Each team's gangs by first submit time, for the front.
        team_of = self.team[class_of]
        by_submit = by_seniority[np.argsort(narrow(team_of[by_seniority]), kind="stable")]
        bounds = np.cumsum(np.bincount(team_of, minlength=len(quota.teams)))[:-1] if count else [0] * len(quota.teams)
        self._by_team: list[list[int]] = [part.tolist() for part in np.split(by_submit, bounds)][: len(quota.teams)]
        self._oldest = [0] * len(quota.teams)
        self._moved = set(range(len(quota.teams)))
        """Teams whose oldest undecided gang may be another one now."""
        self._ahead: dict[int, int] = {}
        self._front: list[int] | None = None
        self._free_by_pool: Sequence[int] = [0] * len(self.pools)
        self._ranks: Floats | None = None
        self._walk: list[int] = []
        self._looked = False
        self._complete = False

    def factors(self, free_by_pool: Sequence[int]) -> list[Floats]:
        """The summands of every class's rank but for age, which differs by gang (zero here)."""
        policy = self.policy
        free = np.array(free_by_pool, float)[self.pool]
        fit = np.minimum(1.0, free / np.maximum(self.need, 1)) * (self.need > 0) + (self.need == 0)
        depth = self.waiting[self.team] / max(1, int(self.waiting.sum()))
        summands = [
            policy.w_priority * self.priority,
            np.zeros(len(self.classes)),
            policy.w_share * (1.0 - self.quota.shares(self.team, self.need)),
            policy.w_gap * fit,
            policy.w_depth * depth,
            policy.w_small * self.small,
        ]
        return [*summands, np.asarray(-policy.w_level * self.level, float)] if policy.time_sharing else summands

    def front(self) -> list[int]:
        """Each team's oldest undecided gang, where it has waited for max_age: by first submit time."""
        for team in self._moved:
            numbers, index = self._by_team[team], self._oldest[team]
            while index < len(numbers) and not self.undecided[numbers[index]]:
                index += 1
            self._oldest[team] = index
            self._ahead.pop(team, None)
            if index < len(numbers) and self.age[numbers[index]] >= 1.0:
                self._ahead[team] = numbers[index]
        self._moved.clear()
        return sorted(self._ahead.values(), key=lambda i: int(self.seniority[i]))

    def next(self) -> int | None:
        """The gang to try now: of the front first, else the head of the best open class; None when all are closed."""
        if self._front is None:
            self._front = self.front()
        for number in self._front:
            if self.open[self.class_of[number]]:
                return number
        while True:
            while self._walk:
                kind_number = self._walk.pop()
                if self.open[kind_number]:
                    return int(self.head[kind_number])
            if self._complete or not self.open.any():
                return None
            self._rank_open()

    def _rank_open(self) -> None:
        """The best open classes in order (all of them when the first few were not enough)."""
        if self._ranks is None:
            self._ranks = np.round(sum(self.factors(self._free_by_pool)), 9)
        total = np.round(self._ranks + self.policy.w_age * self.age[self.head], 9)
        open_ = np.flatnonzero(self.open)
        if not self._looked and len(open_) > 4 * FIRST_FEW:
            least = np.partition(total[open_], len(open_) - FIRST_FEW)[len(open_) - FIRST_FEW]
            open_ = open_[total[open_] >= least]
            self._looked = True
        else:
            self._complete = True
        order = np.lexsort((-self.seniority[self.head[open_]], total[open_]))
        self._walk = open_[order].tolist()  # the best last: it is popped first

    def _changed(self, free_by_pool: Sequence[int]) -> None:
        self._free_by_pool = free_by_pool
        self._ranks, self._front = None, None
        self._walk, self._looked, self._complete = [], False, False

    def begin(self, free_by_pool: Sequence[int]) -> None:
        """Start with these devices free in each pool of `pools`."""
        self._changed(free_by_pool)

    def admitted(self, number: int, free_by_pool: Sequence[int]) -> None:
        """The gang no longer waits, and so many devices are left."""
        self.undecided[number] = False
        kind_number = int(self.class_of[number])
        kind = self.classes[kind_number]
        self.waiting[kind.team] -= 1
        self._moved.add(kind.team)
        while kind.next < len(kind.gangs) and not self.undecided[kind.gangs[kind.next]]:
            kind.next += 1
        if kind.next == len(kind.gangs):
            self.open[kind_number] = self.remaining[kind_number] = False
        else:
            self.head[kind_number] = kind.gangs[kind.next]
        self._changed(free_by_pool)

    def refused(self, number: int) -> None:
        """The gang cannot start in this state; nor can any other of its class."""
        self.open[int(self.class_of[number])] = False

    def close(self, classes: Bools) -> None:
        """None of these can start in this state."""
        self.open &= ~classes

    def reopen(self, classes: Bools | None = None) -> None:
        """Something changed that may cure refusals: try these classes (all, when None) again."""
        self.open |= self.remaining if classes is None else self.remaining & classes
        self._walk, self._looked, self._complete = [], False, False

    def final(self, free_by_pool: Sequence[int]) -> tuple[Ints, list[Floats]]:
        """The gangs still waiting in order, and the summands of every class's rank but for age."""
        summands = self.factors(free_by_pool)
        front = np.array(self.front(), np.int64)
        behind = self.undecided.copy()
        behind[front] = False
        numbers = np.flatnonzero(behind)
        columns = [values[self.class_of[numbers]] for values in summands]
        columns[1] = self.policy.w_age * self.age[numbers]
        rank = np.round(sum(columns), 9)
        return np.concatenate((front, numbers[np.lexsort((self.seniority[numbers], -rank))])), summands
