"""What a trace says: jobs, when they came, what they asked for and how long they ran.

Durations belong to the simulation alone. A scheduler is shown a `Waiting`, which has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.simulation.beginning import Beginning
from dsec_workers.simulation.speedup import relative_speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a trace; seconds count from the trace's own beginning."""

    id: str
    team: str
    request: GangRequest
    submit_at: float
    duration: float
    """Seconds of work at its full size when nothing interrupts it."""
    serial_fraction: float = 0.0
    """Of an elastic job: the part of its work, 0 to 1, that more members do not make faster."""

    def speed(self, members: int) -> float:
        """How fast it works with so many members; 1 is its full size."""
        return relative_speed(members, self.request.nodes, self.serial_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in order of arrival, and where they come from."""

    name: str
    jobs: tuple[Job, ...]
    teams: Mapping[str, Team] = field(default_factory=dict)
    """Quotas that the trace itself states; empty when it states none."""
    remarks: tuple[str, ...] = ()
    """What the reader left out or rounded, for people."""
    placed: Mapping[str, Placement] = field(default_factory=dict)
    """Jobs that run already when the replay begins, by id, and where."""
    leaving: frozenset[str] = frozenset()
    """Those of them that have been told to leave."""
    promised: frozenset[str] = frozenset()
    """Those of them that begin once the leaving have gone whose devices they have."""
    coming: Mapping[str, Placement] = field(default_factory=dict)
    """Of the leaving, where they go on at once: by what the pool's own scheduler decided before."""
    beginning: Beginning | None = None
    """What the pool knew then; only its own scheduler can make use of it."""
    begins_at: float = 0.0
    """Nothing is decided before; who came earlier waits already."""

    @property
    def device_seconds(self) -> float:
        """All the work there is, at full size."""
        return sum(job.duration * job.request.devices for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job in the line as a scheduler may know it: no duration, whatever happened to it so far."""

    id: str
    team: str
    request: GangRequest
    submitted_at: float
    evictions: int = 0
    attained_seconds: float = 0.0
    """Seconds of work behind it, as of its full size, restarts not counted."""


def arrange(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs by arrival, then id."""
    return tuple(sorted(jobs, key=lambda job: (job.submit_at, job.id)))
