"""Two-dimensional least attained service with discretised queues: Tiresias-L.

Source: Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning" (NSDI 2019), and of its public
simulator (SymbioticLab/Tiresias) the scheme `dlas-gpu`: queues, limits, order and promotion are from there.

- A job begins in the first queue and falls to the next when its service (seconds on its devices × devices) reaches
  that queue's limit. The simulator has three queues, so of its limits 3,250, 7,200 and 18,000 the first two count.
- The first queue is served first. Within a queue those that run come first, the longest running before all, then those
  that wait in order of arrival in the queue. Who has just fallen stands behind everybody of the next queue, so
  somebody who waits there may take its place; who is evicted by another queue waits in front of its own.
- Promotion (`promote_after`, the simulator's `dlas-gpu-1`, `-2`, … and its starvation limit): who has waited that many
  times its service seconds goes back to the end of the first queue and counts anew. Off, as in `dlas-gpu`.

The published limits were chosen for 60 jobs of a quarter of an hour on average. So that nothing is won by the choice
of limits, it also plays with those of our own time sharing, as `tiresias-like-our-levels`. The published simulator
counts free GPUs only; here a job needs its devices on nodes. Two kindnesses to it: nobody is evicted whose devices are
not needed, and of the nodes that would do, that with the least to evict is taken.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from dsec_workers.simulation.baselines.common import Baseline, Draft
from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.line import Group, Line
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Seats, Shape, Site

PUBLISHED_LIMITS = (3250.0, 7200.0)
"""Device-seconds at which a job falls to the second and the third queue."""

Place = tuple[int, int, float]
"""Queue, 0 for those that run and 1 for those that wait, order among these: the order of everything."""


class TiresiasLike(Baseline):
    """See the module. `limits` are the device-seconds at which a job falls out of each queue but the last."""

    time_shares = True

    def __init__(
        self,
        limits: Sequence[float] = PUBLISHED_LIMITS,
        *,
        promote_after: float | None = None,
        name: str = "tiresias-like",
    ) -> None:
        super().__init__()
        self.name, self.limits, self.promote_after = name, tuple(limits), promote_after
        self.line = Line(by_team=False)
        self._queue: dict[str, int] = {}
        self._served: dict[str, float] = {}
        """Seconds on devices that count, but for those of the attempt that runs."""
        self._waited: dict[str, float] = {}
        """Seconds of waiting since it was last in the first queue, but for those of now."""
        self._since: dict[str, float] = {}
        """When those who wait and may be promoted began to wait."""
        self._place: dict[str, float] = {}
        """Of those that run: order among them. Of those told to leave: their place among those that wait."""
        self._back = self._front = 0.0
        """Places at the end of those who wait, and in front of them."""
        self._runs = 0.0
        self._fallen: dict[str, float] = {}
        """Who fell at this instant: it stands among those that wait until everybody has been asked."""
        self._falls: list[tuple[float, str, float]] = []
        """When a running job falls to the next queue: time, id, start of the attempt."""
        self._promotions: list[tuple[float, str, float]] = []

    # ---- what happens -----------------------------------------------------------------------------------------

    def arrived(self, job: Waiting, now: float) -> None:
        """New: at the end of the first queue; back: where it was told to wait."""
        if job.id not in self._queue:
            self._queue[job.id], self._served[job.id], self._waited[job.id] = 0, 0.0, 0.0
            self._place[job.id] = self._behind()
        if self.promote_after is not None and self._served[job.id] > 0:
            self._since[job.id] = now
        if self.promote_after is not None and self._queue[job.id] > 0:
            due = now + self.promote_after * self._served[job.id] - self._waited[job.id]
            heappush(self._promotions, (due, job.id, now))
        self._line_up(job)

    def adopted(self, job: Waiting, seats: Seats, now: float, *, leaving: bool = False, promised: bool = False) -> None:
        """It runs already, and counts from now."""
        super().adopted(job, seats, now, leaving=leaving, promised=promised)
        self._queue[job.id], self._served[job.id], self._waited[job.id] = 0, 0.0, 0.0
        if leaving:
            self._place[job.id] = self._before()
        else:
            self._runs_now(job.id)

    def began(self, id: str, now: float) -> None:
        """Its service counts from now."""
        super().began(id, now)
        self._falls_at(id, now)

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """Who did not have to leave but lost its node waits in front of its queue."""
        running = self.running[id]
        if not finished and not running.leaving:
            self._stops(id, now, self._before())
        super().left(id, now, finished=finished)
        if finished:
            for known in (self._queue, self._served, self._waited, self._place):
                known.pop(id, None)

    def wake_at(self) -> float | None:
        """The next fall or promotion, while anybody waits."""
        self._forget_past()
        if not self.line.groups():
            return None
        return min((queue[0][0] for queue in (self._falls, self._promotions) if queue), default=None)

    # ---- what is decided --------------------------------------------------------------------------------------

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """Everybody in order; a job further back leaves for one further in front."""
        self._fall(now)
        self._promote(now)
        starts = self._serve(site, now)
        for id in self._fallen:
            if not self.running[id].leaving:
                self._runs_now(id)
        self._fallen.clear()
        return starts

    def _serve(self, site: Site, now: float) -> list[Start]:
        starts: list[Start] = []
        groups = self.line.groups()
        if not groups:
            return starts
        draft = Draft(site)
        behind: list[tuple[Place, str]] | None = None
        evicted: list[tuple[Place, str]] = []
        refused: set[Shape] = set()
        while True:
            group = min(
                (g for g in groups if len(g) and g.shape not in refused), key=lambda g: (g.rank, g.key), default=None
            )
            if group is None:
                break
            nodes = draft.find(group.shape)
            victims: list[str] = []
            if nodes is None:
                if behind is None:
                    behind = sorted(((self._standing(id), id) for id in self._interruptible()), reverse=True)
                nodes, victims = self._by_eviction(group, draft, behind)
            if nodes is None:
                refused.add(group.shape)  # those behind it may evict fewer
                continue
            evicted += ((self._standing(id), id) for id in victims)
            starts.append(self.start(group, draft, nodes, now, victims))
            self._begins(starts[-1].id, now)
        for _, id in sorted(evicted, reverse=True):  # in front of their queues in the order in which they ran
            self._stops(id, now, self._fallen[id] if id in self._fallen else self._before())
        return starts

    def _by_eviction(
        self, group: Group, draft: Draft, behind: list[tuple[Place, str]]
    ) -> tuple[list[int] | None, list[str]]:
        shape, place = group.shape, (group.rank, 1, group.key[0])
        count = draft.count.copy()
        at: dict[int, list[str]] = {}
        for other, id in behind:
            if other <= place:
                break
            if self.running[id].leaving:
                continue
            for node, mask in self.running[id].seats:
                count[node] += mask.bit_count()
                at.setdefault(node, []).append(id)
        able = np.flatnonzero((count >= shape.devices) & draft.site.eligible(shape))
        if len(able) < shape.members:
            return None, []
        missing = np.maximum(0, shape.devices - draft.count[able])
        nodes = [int(n) for n in able[np.argsort(missing, kind="stable")[: shape.members]]]
        victims: list[str] = []
        for node in nodes:
            for id in at.get(node, ()):  # the last in order first
                if draft.count[node] >= shape.devices:
                    break
                if id not in victims:
                    victims.append(id)
                    draft.give(self.running[id].seats)
        return nodes, victims

    def _interruptible(self) -> list[str]:
        return [
            id
            for id, running in self.running.items()
            if not running.leaving and not running.promised and running.job.request.evictable
        ]

    # ---- queues -----------------------------------------------------------------------------------------------

    def _standing(self, id: str) -> Place:
        """The place of a job that runs."""
        if id in self._fallen:
            return self._queue[id], 1, self._fallen[id]
        return self._queue[id], 0, self._place[id]

    def _line_up(self, job: Waiting) -> None:
        self.line.push(job, rank=self._queue[job.id], place=(self._place[job.id], job.id))

    def _begins(self, id: str, now: float) -> None:
        if id in self._since:
            self._waited[id] += now - self._since.pop(id)
        self._runs_now(id)

    def _stops(self, id: str, now: float, place: float) -> None:
        """It runs no longer, and waits at that place once it is back."""
        running = self.running[id]
        self._served[id] += 0.0 if running.promised else now - running.since
        self._place[id] = place

    def _runs_now(self, id: str) -> None:
        self._runs += 1.0
        self._place[id] = self._runs

    def _behind(self) -> float:
        self._back += 1.0
        return self._back

    def _before(self) -> float:
        self._front -= 1.0
        return self._front

    def _falls_at(self, id: str, since: float) -> None:
        queue = self._queue[id]
        if queue < len(self.limits):
            left = self.limits[queue] / max(1, self.running[id].devices) - self._served[id]
            heappush(self._falls, (since + max(0.0, left), id, since))

    def _fall(self, now: float) -> None:
        self._forget_past()
        while self._falls and self._falls[0][0] <= now:
            _, id, since = heappop(self._falls)
            if self._still_runs(id, since):
                self._queue[id] += 1
                self._fallen[id] = self._behind()
                self._falls_at(id, since)

    def _promote(self, now: float) -> None:
        while self._promotions and self._promotions[0][0] <= now:
            _, id, since = heappop(self._promotions)
            if self._since.get(id) != since:
                continue
            del self._since[id]
            found = [job for group in self.line.groups() if group.rank == self._queue[id] for job in group.remove([id])]
            self._queue[id], self._served[id], self._waited[id] = 0, 0.0, 0.0
            self._place[id] = self._behind()
            for job in found:
                self._line_up(job)

    def _forget_past(self) -> None:
        while self._falls and not self._still_runs(self._falls[0][1], self._falls[0][2]):
            heappop(self._falls)
        while self._promotions and self._since.get(self._promotions[0][1]) != self._promotions[0][2]:
            heappop(self._promotions)

    def _still_runs(self, id: str, since: float) -> bool:
        running = self.running.get(id)
        return running is not None and running.since == since and not running.leaving
