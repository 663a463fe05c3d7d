"""What a scheduler is to the simulation: it hears what happens and says who starts where.

`plan()` and every baseline play by these rules, with the same knowledge (no durations) and the same price of an
eviction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.site import Seats, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a job on these devices: now, or as soon as those who hold some of them have left.

    `victims` are told to leave; `waits_for` are leaving already.
    """

    id: str
    seats: Seats
    victims: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    goes_on: tuple[tuple[str, Seats], ...] = ()
    """Jobs that are told to leave too, each with the devices on which it goes on at once: free ones, or its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Tell a job to leave, for one that starts later: nobody starts on its devices yet."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    """Tell a job to leave, to go on at once on all these devices: its own, and free ones."""

    id: str
    seats: Seats


Decision = Start | Leave | Grow


class Scheduler(Protocol):
    """One policy. `site` is the referee's own and only to be read."""

    name: str
    time_shares: bool
    """Whether it interrupts jobs to give others of equal standing a turn."""
    elastic: bool
    """Whether it starts a job with fewer members than it asks for, where the job accepts that."""

    def arrived(self, job: Waiting, now: float) -> None:
        """A job is in the line: new, or back after an eviction or a failure."""

    def adopted(self, job: Waiting, seats: Seats, now: float, *, leaving: bool = False, promised: bool = False) -> None:
        """A job holds devices when the replay begins; it did not arrive.

        It has begun, unless its devices are `promised` to it by others that are still there; with `leaving` it has
        been told to go.
        """

    def began(self, id: str, now: float) -> None:
        """A job that was decided to start has all its devices; one that goes on has `left` at this instant."""

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """A job holds nothing any more: it is done, or it will `arrive` again."""

    def decide(self, site: Site, now: float) -> Sequence[Decision]:
        """Who starts, leaves and grows now. Called after every instant at which something changed."""

    def wake_at(self) -> float | None:
        """When it wants to decide though nothing has changed by then; None: never."""
