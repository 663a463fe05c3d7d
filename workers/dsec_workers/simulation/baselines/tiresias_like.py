"""Two-dimensional least attained service with discretised queues: Tiresias-L.

Source: Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning" (NSDI 2019) and the parameters of
its public simulator: two queues, a job falls to the second once it has attained 3,250 GPU-seconds (devices × time);
first the lower queue, within a queue first come first served, preemptive; no promotion, as in its default run. Two
kindnesses to it: nobody is evicted whose devices are not needed, and of the nodes that would do, that with the least
to evict is taken.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from dsec_workers.simulation.baselines.common import Baseline, Draft, Running
from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.line import Group
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Shape, Site

THRESHOLD_DEVICE_SECONDS = 3250.0

Place = tuple[int, float, str]
"""Queue, first submit time, id: the order of everything."""


class TiresiasLike(Baseline):
    """See the module."""

    name = "tiresias-like"
    time_shares = True

    def __init__(self, threshold_device_seconds: float = THRESHOLD_DEVICE_SECONDS) -> None:
        super().__init__()
        self.threshold = threshold_device_seconds
        self._falls: list[tuple[float, str, float]] = []
        """When a running job falls to the second queue."""

    def arrived(self, job: Waiting, now: float) -> None:
        """Into the queue of its attained service."""
        self.line.push(job, rank=self._queue(job.attained_seconds * job.request.devices))

    def began(self, id: str, now: float) -> None:
        """Its service counts from now."""
        super().began(id, now)
        running = self.running[id]
        left = self.threshold / max(1, running.devices) - running.job.attained_seconds
        if left > 0:
            heappush(self._falls, (now + left, id, now))

    def wake_at(self) -> float | None:
        """The next fall."""
        while self._falls:
            at, id, since = self._falls[0]
            running = self.running.get(id)
            if running is not None and running.since == since:
                return at
            heappop(self._falls)
        return None

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """Everybody in order; a job further back leaves for one further in front."""
        while self._falls and self._falls[0][0] <= now:
            heappop(self._falls)
        groups = self.line.groups()
        if not groups:
            return []
        draft = Draft(site)
        starts: list[Start] = []
        lower: list[tuple[Place, str]] | None = None
        refused: set[Shape] = set()
        while True:
            group = min(
                (g for g in groups if len(g) and g.shape not in refused), key=lambda g: (g.rank, g.key), default=None
            )
            if group is None:
                return starts
            nodes = draft.find(group.shape)
            victims: list[str] = []
            if nodes is None:
                if lower is None:
                    lower = sorted(
                        ((self._place(running, now), id) for id, running in self.running.items()), reverse=True
                    )
                nodes, victims = self._by_eviction(group, draft, lower)
            if nodes is None:
                refused.add(group.shape)  # those behind it may evict fewer
                continue
            starts.append(self.start(group, draft, nodes, now, victims))

    def _by_eviction(
        self, group: Group, draft: Draft, lower: list[tuple[Place, str]]
    ) -> tuple[list[int] | None, list[str]]:
        shape, place = group.shape, (group.rank, *group.key)
        count = draft.count.copy()
        at: dict[int, list[str]] = {}
        for other, id in lower:
            if other <= place:
                break
            running = self.running[id]
            if running.leaving or running.promised or not running.job.request.evictable:
                continue
            for node, mask in running.seats:
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

    def _place(self, running: Running, now: float) -> Place:
        job = running.job
        served = 0.0 if running.promised else now - running.since
        return (self._queue((job.attained_seconds + served) * running.devices), job.submitted_at, job.id)

    def _queue(self, device_seconds: float) -> int:
        # A hair's breadth below counts: a fall is due at the very second at which the sum is reached.
        return 0 if device_seconds < self.threshold - 1e-6 else 1
