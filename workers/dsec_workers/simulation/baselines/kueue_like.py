"""Quotas with borrowing in one cohort, best-effort FIFO, and greedy preemption of the newest first: Kueue's way.

Source: Kueue's documentation of ClusterQueue (queueingStrategy BestEffortFIFO, reclaimWithinCohort Any,
withinClusterQueue LowerPriority, classical preemption). Every team is a ClusterQueue, all in one cohort, borrowing
without limit. Among the queues' heads those that do not borrow go first, then higher priority, then first submit
time. A head within its nominal quota that does not fit evicts: candidates are jobs of queues that are borrowing and
lower-priority jobs of its own queue, other queues first, lowest priority first, newest first; taken until the head
fits, then given back in reverse where it still does. Placement is by shape, as with topology-aware scheduling.
"""

from collections.abc import Mapping, Sequence

from dsec_blocks.model.teams import Team
from dsec_workers.simulation.baselines.common import Baseline, Draft
from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.line import Group
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Seats, Site


class KueueLike(Baseline):
    """See the module."""

    name = "kueue-like"

    def __init__(self, teams: Mapping[str, Team]) -> None:
        super().__init__()
        self.nominal = {name: team.nominal_devices for name, team in teams.items()}
        self.limit = {name: team.limit_devices for name, team in teams.items()}
        self.used = dict.fromkeys(self.nominal, 0)

    def arrived(self, job: Waiting, now: float) -> None:
        """Line up behind higher priorities."""
        self.nominal.setdefault(job.team, 0)
        self.used.setdefault(job.team, 0)
        self.line.push(job, rank=-job.request.priority)

    def adopted(self, job: Waiting, seats: Seats, now: float, *, leaving: bool = False, promised: bool = False) -> None:
        """It uses quota already, unless it is on its way out."""
        super().adopted(job, seats, now, leaving=leaving, promised=promised)
        self.nominal.setdefault(job.team, 0)
        self.used[job.team] = self.used.get(job.team, 0) + (0 if leaving else self.running[job.id].devices)

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """Quota is free again (an evicted job's was when it was told)."""
        gone = self.running[id]
        if not gone.leaving:
            self.used[gone.job.team] -= gone.devices
        super().left(id, now, finished=finished)

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """One head a queue, again and again until none is admitted."""
        draft = Draft(site)
        starts: list[Start] = []
        refused: set[tuple[str, object, int]] = set()
        while heads := self._heads(refused):
            found = self._first(heads, draft, refused, now)
            if found is not None:
                starts.append(found)
        return starts

    def _heads(self, refused: set[tuple[str, object, int]]) -> dict[str, Group]:
        """By team, the first kind of job that has not been refused: the others may pass it (best effort)."""
        heads: dict[str, Group] = {}
        for group in self.line.groups():
            if (group.team, group.shape, group.rank) not in refused:
                heads.setdefault(group.team, group)
        return heads

    def _first(
        self, heads: dict[str, Group], draft: Draft, refused: set[tuple[str, object, int]], now: float
    ) -> Start | None:
        """The first head that can start does; those before it are refused for now."""
        for group in sorted(heads.values(), key=lambda g: (self._borrows(g), g.rank, g.key)):
            limit = self.limit.get(group.team)
            if limit is None or self.used[group.team] + group.shape.total <= limit:
                nodes = draft.find(group.shape)
                victims: list[str] = []
                if nodes is None:
                    victims = self._victims(group, draft)
                    nodes = draft.find(group.shape) if victims else None
                if nodes is not None:
                    self.used[group.team] += group.shape.total
                    return self.start(group, draft, nodes, now, victims)
            refused.add((group.team, group.shape, group.rank))
        return None

    def _borrows(self, group: Group) -> bool:
        return self.used[group.team] + group.shape.total > self.nominal[group.team]

    def _victims(self, group: Group, draft: Draft) -> list[str]:
        """Whom to evict, their devices given to the draft; nobody when that does not make it fit."""
        reclaims = not self._borrows(group)
        candidates = [
            (running.job.team == group.team, running.job.request.priority, -running.since, id)
            for id, running in self.running.items()
            if not running.leaving
            and not running.promised
            and running.job.request.evictable
            and (
                running.job.request.priority < -group.rank
                if running.job.team == group.team
                else reclaims and self.used[running.job.team] > self.nominal[running.job.team]
            )
        ]
        if not candidates or not self._possible(group, draft, [c[3] for c in candidates]):
            return []
        taken: list[str] = []
        for *_, id in sorted(candidates):
            running = self.running[id]
            if running.job.team != group.team and self.used[running.job.team] <= self.nominal[running.job.team]:
                continue
            self._evict(id, draft, taken)
            if draft.find(group.shape) is not None:
                break
        else:
            for id in list(taken):
                self._spare(id, draft, taken)
            return []
        for id in reversed(taken[:-1]):
            self._spare(id, draft, taken)
            if draft.find(group.shape) is None:
                self._evict(id, draft, taken)
        return taken

    def _possible(self, group: Group, draft: Draft, ids: list[str]) -> bool:
        count = draft.count.copy()
        for id in ids:
            for node, mask in self.running[id].seats:
                count[node] += mask.bit_count()
        return draft.site.find(group.shape, count) is not None

    def _evict(self, id: str, draft: Draft, taken: list[str]) -> None:
        taken.append(id)
        self.used[self.running[id].job.team] -= self.running[id].devices
        draft.give(self.running[id].seats)

    def _spare(self, id: str, draft: Draft, taken: list[str]) -> None:
        taken.remove(id)
        self.used[self.running[id].job.team] += self.running[id].devices
        draft.withdraw(self.running[id].seats)
