"""First in, first out, without backfill: the head of the line blocks everybody behind it.

What the schedulers of the first clusters did, and what YARN's capacity scheduler does within one queue.
"""

from collections.abc import Sequence

from dsec_workers.simulation.baselines.common import Baseline, Draft
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Site


class Fifo(Baseline):
    """See the module."""

    name = "fifo"

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """The oldest, as long as it fits."""
        draft = Draft(site)
        starts: list[Start] = []
        while True:
            group = min(self.line.groups(), key=lambda g: g.key, default=None)
            nodes = None if group is None else draft.find(group.shape)
            if group is None or nodes is None:
                return starts
            starts.append(self.start(group, draft, nodes, now))
