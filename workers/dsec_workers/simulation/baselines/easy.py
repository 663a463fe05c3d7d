"""EASY backfill: the head of the line has a reservation, and others may pass it if that does not delay it.

Source: Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995); Mu'alem and Feitelson, TPDS 2001. In the GPU form:
walk the running jobs by expected end until the head's shape fits on nodes (the shadow time S); a job may start now
if it fits now and either ends by S or leaves the head its nodes. EASY needs limits from users; here, where nobody
states any, the 90th percentile of ended jobs stands in, doubled when a job outlives it.
"""

from collections.abc import Sequence

import numpy as np

from dsec_workers.simulation.baselines.common import Baseline, Draft, Ints
from dsec_workers.simulation.estimates import Estimates, outlived
from dsec_workers.simulation.line import Group
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Shape, Site

PERCENTILE = 90.0


class Easy(Baseline):
    """See the module."""

    name = "easy"

    def __init__(self, estimates: Estimates | None = None) -> None:
        super().__init__()
        self.estimates = estimates or Estimates()

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """What ends teaches."""
        gone = self.running[id]
        if finished:
            self.estimates.ended(gone.job.team, gone.devices, now - gone.since)
        super().left(id, now, finished=finished)

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """The line in order; then who may pass its head."""
        draft = Draft(site)
        starts: list[Start] = []
        if not site.count.any():
            return starts
        while True:
            groups = sorted(self.line.groups(), key=lambda g: g.key)
            if not groups:
                return starts
            nodes = draft.find(groups[0].shape)
            if nodes is None:
                break
            starts.append(self.start(groups[0], draft, nodes, now))
        shadow, kept = self._shadow(groups[0].shape, draft, now)
        refused: set[Shape] = set()
        behind = groups[1:]  # the head's own kind does not fit either
        while behind:
            passer = self._passer(behind, draft, refused, shadow, kept, now)
            if passer is None:
                return starts
            group, nodes, extra = passer
            starts.append(self.start(group, draft, nodes, now))
            if extra:
                for node in nodes:
                    kept[node] -= group.shape.devices
            behind = sorted((g for g in behind if len(g)), key=lambda g: g.key)
        return starts

    def _passer(
        self, behind: list[Group], draft: Draft, refused: set[Shape], shadow: float, kept: Ints, now: float
    ) -> tuple[Group, list[int], bool] | None:
        """The first that may start now; whether it uses what the head does not need."""
        for group in behind:
            shape = group.shape
            if shape in refused:
                continue
            nodes = draft.find(shape)
            if nodes is None:
                refused.add(shape)
                continue
            if now + self.estimates.seconds(group.team, shape.total, PERCENTILE) <= shadow:
                return group, nodes, False
            nodes = draft.site.find(shape, np.minimum(draft.count, kept))
            if nodes is not None:
                return group, nodes, True
        return None

    def _shadow(self, shape: Shape, draft: Draft, now: float) -> tuple[float, Ints]:
        """When the head will fit, and the devices of every node that it leaves to others then."""
        ends = sorted((self._end(id, now), id) for id in self.running)
        count = draft.count.copy()
        at = now
        for at, id in ends:
            for node, mask in self.running[id].seats:
                count[node] += mask.bit_count()
            nodes = draft.site.find(shape, count)
            if nodes is not None:
                count[nodes] -= shape.devices
                return at, count
        return float("inf"), count

    def _end(self, id: str, now: float) -> float:
        running = self.running[id]
        estimate = outlived(
            lambda: self.estimates.seconds(running.job.team, running.devices, PERCENTILE), now - running.since
        )
        return running.since + estimate
