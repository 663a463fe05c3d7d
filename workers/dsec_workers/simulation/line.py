"""A waiting line that stays quick when it is long: jobs of one team and shape differ in nothing but age.

Baselines look at the heads of such groups only, so that a line of ten thousand costs what its few dozen groups cost.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.site import Shape

Key = tuple[float, str]
"""A place in the line, the least first. First come, first served: first submit time, then id, so that an evicted job
comes back to its old place."""


class Group:
    """Jobs of one team, shape and rank, oldest first."""

    def __init__(self, team: str, shape: Shape, rank: int) -> None:
        self.team, self.shape, self.rank = team, shape, rank
        self._heap: list[tuple[Key, Waiting]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, job: Waiting, place: Key | None = None) -> None:
        """Line up by first submit time, or at that place."""
        heappush(self._heap, (place or (job.submitted_at, job.id), job))

    @property
    def head(self) -> Waiting:
        """The oldest."""
        return self._heap[0][1]

    @property
    def key(self) -> Key:
        """The oldest's place in the line."""
        return self._heap[0][0]

    def pop(self) -> Waiting:
        """Take the oldest out."""
        return heappop(self._heap)[1]

    def remove(self, ids: Iterable[str]) -> list[Waiting]:
        """Take these out."""
        gone = set(ids)
        out = [job for _, job in self._heap if job.id in gone]
        self._heap = [entry for entry in self._heap if entry[1].id not in gone]
        heapify(self._heap)
        return out


class Line:
    """All groups that have somebody waiting."""

    def __init__(self, *, by_team: bool = True) -> None:
        """`by_team` false puts jobs of all teams into one group, for schedulers that know none."""
        self._by_team = by_team
        self._groups: dict[tuple[str, Shape, int], Group] = {}

    def push(self, job: Waiting, *, rank: int = 0, place: Key | None = None) -> None:
        """Line up; a lower rank goes first where a scheduler looks at ranks."""
        key = (job.team if self._by_team else "", Shape.of(job.request), rank)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        group.push(job, place)

    def groups(self) -> list[Group]:
        """Groups that have somebody waiting, by rank, then by their oldest."""
        return sorted((g for g in self._groups.values() if len(g)), key=lambda g: (g.rank, g.key))
