"""What the baselines share: a line, what runs where, and a draft of who gets what in one decision."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.line import Group, Line
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Seats, Shape, Site, lowest

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Running:
    """A job that has devices or was promised some."""

    job: Waiting
    seats: Seats
    since: float
    leaving: bool = False
    promised: bool = False
    devices: int = 0


class Draft:
    """Free devices while a decision is being made: a copy of the site's, so that nothing is given twice."""

    def __init__(self, site: Site) -> None:
        self.site, self.free, self.count = site, list(site.free), site.count.copy()

    def find(self, shape: Shape) -> list[int] | None:
        """Nodes for it in what is free."""
        return self.site.find(shape, self.count)

    def take(self, nodes: list[int], devices: int) -> Seats:
        """The first free devices of these nodes, taken."""
        seats = []
        for node in nodes:
            mask = lowest(self.free[node], devices)
            self.free[node] &= ~mask
            self.count[node] -= devices
            seats.append((node, mask))
        return tuple(seats)

    def give(self, seats: Seats) -> None:
        """These will be free: their holder is told to leave."""
        for node, mask in seats:
            self.free[node] |= mask
            self.count[node] += mask.bit_count()

    def withdraw(self, seats: Seats) -> None:
        """What is left of these is not to be had in this decision: its holder still has to leave."""
        for node, mask in seats:
            left = mask & self.free[node]
            self.free[node] &= ~left
            self.count[node] -= left.bit_count()


class Baseline:
    """A line and what runs; `decide` is left to the policy."""

    name = ""
    time_shares = False
    elastic = False
    """A job gets its full size or nothing, and keeps what it has: none of them resizes."""

    def __init__(self) -> None:
        self.line = Line()
        self.running: dict[str, Running] = {}

    def arrived(self, job: Waiting, now: float) -> None:
        """Line up."""
        self.line.push(job)

    def adopted(self, job: Waiting, seats: Seats, now: float, *, leaving: bool = False, promised: bool = False) -> None:
        """It runs already."""
        devices = sum(mask.bit_count() for _, mask in seats)
        self.running[job.id] = Running(job, seats, now, leaving=leaving, promised=promised, devices=devices)

    def began(self, id: str, now: float) -> None:
        """Its work begins."""
        self.running[id].promised = False
        self.running[id].since = now

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """It holds nothing any more."""
        del self.running[id]

    def wake_at(self) -> float | None:
        """Nothing changes with time alone."""
        return None

    def start(self, group: Group, draft: Draft, nodes: list[int], now: float, victims: Sequence[str] = ()) -> Start:
        """The group's oldest starts on these nodes, once the victims (already given to the draft) have left."""
        job = group.pop()
        seats = draft.take(nodes, group.shape.devices)
        self.running[job.id] = Running(job, seats, now, promised=bool(victims), devices=group.shape.total)
        for id in victims:
            self.running[id].leaving = True
            draft.withdraw(self.running[id].seats)
        return Start(id=job.id, seats=seats, victims=tuple(victims))
