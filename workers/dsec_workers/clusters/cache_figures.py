"""What an attempt's processes got from their nodes' caches, as it travels among the gang's metrics. Pure.

Their names hold a dot, so no metric that a flow reports (`run.report(loss=…)`) can be one of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

_PREFIX = "cache."
_ATTEMPT = f"{_PREFIX}attempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Bytes asked for, and of them what came from where; seconds of the process that waited longest."""

    total_bytes: int
    """Of all bundles, once a member."""
    cluster_bytes: int
    origin_bytes: int
    stall_seconds: float
    """From asking for a bundle to having it, all acquires of one process together."""
    fetch_seconds: float
    verify_seconds: float

    @property
    def fetched_bytes(self) -> int:
        """What was not on the nodes' disks when it was asked for."""
        return self.cluster_bytes + self.origin_bytes

    @property
    def local_hit_ratio(self) -> float:
        """The part of the bytes that was on the nodes' disks; 1.0 where nothing was asked for."""
        return max(0.0, 1.0 - self.fetched_bytes / self.total_bytes) if self.total_bytes else 1.0

    @property
    def total_hit_ratio(self) -> float:
        """The part that was there or in the cluster's store, so that the origin was not asked for it."""
        return max(0.0, 1.0 - self.origin_bytes / self.total_bytes) if self.total_bytes else 1.0

    def to_metrics(self, attempt: int) -> dict[str, float]:
        """As the gang reports them."""
        told = {f"{_PREFIX}{name}": float(value) for name, value in asdict(self).items()}
        return {**told, _ATTEMPT: float(attempt)}

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float], *, attempt: int) -> "CacheFigures | None":
        """Those of `attempt`; None where it told none."""
        if metrics.get(_ATTEMPT) != attempt:
            return None
        told = {field.name: metrics.get(f"{_PREFIX}{field.name}", 0.0) for field in fields(cls)}
        return cls(**{name: int(value) if name.endswith("_bytes") else value for name, value in told.items()})  # type: ignore[arg-type]
