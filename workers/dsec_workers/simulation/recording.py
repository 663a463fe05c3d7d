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
    """Times that it was told to leave, to go on elsewhere or at another size included: as the ledger counts them."""
    resizes: int = 0
    """Those of them after which it went on at another size."""
    failures: int = 0
    lost_device_seconds: float = 0.0
    """Device time that was held for checkpoints, restarts and work done twice because of evictions and failures."""
    resize_device_seconds: float = 0.0
    """Device time that was held for the checkpoints and restarts of resizes, and for work that they had done twice."""
    held_device_seconds: float = 0.0
    refused: str | None = None
    """Why it can never start on this cluster."""

    @property
    def jct(self) -> float | None:
        """Job completion time: from arrival to end."""
        return None if self.finished_at is None else self.finished_at - self.job.submit_at

    @property
    def wait(self) -> float | None:
        """All the time that the job did not work: JCT − duration; what it takes longer at a smaller size included."""
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
