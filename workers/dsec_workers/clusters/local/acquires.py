"""What a gang's processes got from their nodes' caches, in a few numbers for the run's report.

Several ranks of a node acquire the same bundle: the first fetches it and the others wait for that fetch, so a bundle
counts once a member, and of the waits the longest counts.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dsec_workers.clusters.cache_figures import CacheFigures


class Acquires:
    """All acquires of one attempt."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._sizes: dict[tuple[int, str], int] = {}
        self._cluster_bytes = self._origin_bytes = 0
        self._seconds: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def add(self, told: Mapping[str, Any]) -> dict[str, float]:
        """Count one more; all of them together, as metrics of the gang."""
        bundle, process = (int(told["member"]), str(told["uri"])), (int(told["member"]), int(told["rank"]))
        self._sizes[bundle] = max(self._sizes.get(bundle, 0), int(told["bytes"]))
        self._cluster_bytes += int(told["cluster"])
        self._origin_bytes += int(told["origin"])
        mine = self._seconds[process]
        for place, name in enumerate(("seconds", "fetch", "verify")):
            mine[place] += float(told[name])
        stall, fetch, verify = (max(each[place] for each in self._seconds.values()) for place in range(3))
        return CacheFigures(
            total_bytes=sum(self._sizes.values()),
            cluster_bytes=self._cluster_bytes,
            origin_bytes=self._origin_bytes,
            stall_seconds=stall,
            fetch_seconds=fetch,
            verify_seconds=verify,
        ).to_metrics(self._attempt)
