"""What an interruption costs, the same for every scheduler that interrupts.

A job told to leave takes `checkpoint_seconds` to write its snapshot, holding its devices; its next attempt spends
`restart_seconds` before it goes on. With `interval_seconds` it also commits at that interval (each commit stops it for
`checkpoint_seconds`), which is what a failure falls back to; without `snapshot_on_evict` an eviction does too.
"""

from dataclasses import dataclass
from math import ceil, inf

from dsec_blocks.model.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds; the defaults are those that the policy assumes of a gang it has not measured."""

    checkpoint_seconds: float = 10.0
    restart_seconds: float = 30.0
    interval_seconds: float | None = None
    snapshot_on_evict: bool = True

    def __post_init__(self) -> None:
        for name in ("checkpoint_seconds", "restart_seconds"):
            if not 0 <= getattr(self, name) < inf:
                raise InvalidRequest(f"{name}: {getattr(self, name)} is no duration; give seconds, 0 or more")
        if self.interval_seconds is not None and not 0 < self.interval_seconds < inf:
            raise InvalidRequest(
                f"interval_seconds: {self.interval_seconds} must be more than 0; leave it out for none"
            )

    def wall(self, work: float, *, attempt: int) -> float:
        """Seconds from start to end of an attempt that has `work` seconds left."""
        commits = 0 if self.interval_seconds is None else max(0, ceil(work / self.interval_seconds) - 1)
        return self._restart(attempt) + work + commits * self.checkpoint_seconds

    def done(self, elapsed: float, *, attempt: int) -> float:
        """Seconds of work behind an attempt after `elapsed` seconds."""
        elapsed = max(0.0, elapsed - self._restart(attempt))
        if self.interval_seconds is None:
            return elapsed
        rounds, rest = divmod(elapsed, self.interval_seconds + self.checkpoint_seconds)
        return rounds * self.interval_seconds + min(rest, self.interval_seconds)

    def first_commit(self, *, attempt: int) -> float:
        """Seconds from the start of an attempt to its first commit; infinite without an interval."""
        if self.interval_seconds is None:
            return inf
        return self._restart(attempt) + self.interval_seconds + self.checkpoint_seconds

    def commits(self, elapsed: float, *, attempt: int) -> tuple[float, float] | None:
        """Seconds from the start of an attempt to its first and its last commit; None before the first."""
        first = self.first_commit(attempt=attempt)
        if self.interval_seconds is None or elapsed < first:
            return None
        round_seconds = self.interval_seconds + self.checkpoint_seconds
        return first, first + (elapsed - first) // round_seconds * round_seconds

    def kept(self, done: float, *, failed: bool) -> float:
        """How much of the work of an attempt survives its end before time."""
        if not failed and self.snapshot_on_evict:
            return done
        return 0.0 if self.interval_seconds is None else done // self.interval_seconds * self.interval_seconds

    def _restart(self, attempt: int) -> float:
        return self.restart_seconds if attempt > 1 else 0.0
