"""What happened in a replay: a row a job, a span a stay on devices, samples in between."""

from dataclasses import dataclass, field

from dsec_workers.simulation.jobs import Job
from dsec_workers.simulation.site import Seats


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt on its devices, its snapshot included."""

    id: str
    attempt: int
    start: float
    end: float
    seats: Seats


@dataclass(slots=True)
class Outcome:
    """One job's story."""

    job: Job
    first_start: float | None = None
    finished_at: float | None = None
    attempts: int = 0
    evictions: int = 0
    failures: int = 0
    lost_device_seconds: float = 0.0
    """Device time that was held for checkpoints, restarts and work done twice because of evictions and failures."""
    held_device_seconds: float = 0.0
    refused: str | None = None
    """Why it can never start on this cluster."""

    @property
    def jct(self) -> float | None:
        """Job completion time: from arrival to end."""
        return None if self.finished_at is None else self.finished_at - self.job.submit_at

    @property
    def wait(self) -> float | None:
        """All the time that the job did not work: JCT − duration."""
        return None if self.jct is None else max(0.0, self.jct - self.job.duration)


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster after the decisions of one instant."""

    at: float
    busy: int
    waiting: int
    waiting_devices: int
    fragmented: int


@dataclass(kw_only=True)
class Recording:
    """A whole replay under one policy."""

    policy: str
    trace: str
    devices: int
    nodes: tuple[str, ...]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    cycles: int = 0
    decide_seconds: float = 0.0
    interrupted: bool = False
