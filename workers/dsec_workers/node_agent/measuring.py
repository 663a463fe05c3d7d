"""The agent's figures, added up from what every process on the node noted in the cache, for Prometheus and placement.

A hit is counted in bytes: what of the wanted bytes was here (local), or here or at the cluster level (total).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dsec_blocks.cache import Cache
from dsec_blocks.cache.accounting import ACQUIRED, EVICTED
from dsec_blocks.cache.store import events
from dsec_blocks.cache.store.usage import usage
from dsec_workers.node_agent.prefetching import OPEN, Prefetches

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_LEAST_BYTES = 4 * 2**20
"""A fetch of less tells about latency, not about bandwidth."""
_NEWEST = 0.3


@dataclass
class Tally:
    """Sums over the events since this agent began, its predecessors' journal included."""

    local_bytes: int = 0
    cluster_bytes: int = 0
    origin_bytes: int = 0
    stall_seconds: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    last_starts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def wanted_bytes(self) -> int:
        """What starts asked for."""
        return self.local_bytes + self.cluster_bytes + self.origin_bytes

    def hit_ratio(self, *, total: bool) -> float | None:
        """Bytes that were near, of those wanted; None before the first start."""
        if not self.wanted_bytes:
            return None
        return (self.local_bytes + (self.cluster_bytes if total else 0)) / self.wanted_bytes

    def add(self, event: events.Event) -> None:
        """One acquire."""
        fetched = int(event["cluster"]) + int(event["origin"])
        if fetched >= _LEAST_BYTES and event["fetch"] > 0:
            rate = fetched / float(event["fetch"])
            last = self.bandwidth_bytes_per_s
            self.bandwidth_bytes_per_s = rate if last is None else _NEWEST * rate + (1 - _NEWEST) * last
        if event["background"]:
            return
        self.local_bytes += max(0, int(event["bytes"]) - fetched)
        self.cluster_bytes += int(event["cluster"])
        self.origin_bytes += int(event["origin"])
        self.stall_seconds += float(event["seconds"])
        self.last_starts = [*self.last_starts, dict(event)][-100:]

    @property
    def rounded_bandwidth(self) -> float | None:
        """Two digits: a figure that moves with every fetch would be written with every fetch."""
        return None if self.bandwidth_bytes_per_s is None else float(f"{self.bandwidth_bytes_per_s:.1e}")


class Measuring(Collector):
    """Everything that /metrics shows."""

    def __init__(self, cache: Cache, prefetches: Prefetches) -> None:
        self.tally = Tally()
        self.registry = CollectorRegistry()
        self._cache = cache
        self._prefetches = prefetches
        self._position: events.Position | None = None
        self._wanted = Counter(
            "dsec_cache_wanted_bytes", "Bytes that starts asked for", ["source"], registry=self.registry
        )
        self._stall = Counter("dsec_cache_stall_seconds", "Time starts stood still for data", registry=self.registry)
        self._evictions = Counter("dsec_cache_evictions", "Bundles evicted", ["policy"], registry=self.registry)
        self._evicted = Counter("dsec_cache_evicted_bytes", "Bytes that left", ["policy"], registry=self.registry)
        self._phases = Histogram(
            "dsec_start_data_seconds",
            "A start's wait for its data",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.ended = Counter("dsec_prefetches", "Prefetches that ended", ["state"], registry=self.registry)
        self.registry.register(self)

    def step(self) -> None:
        """Read what was noted since."""
        found, self._position = events.events_since(self._cache.store.layout, self._position)
        for event in found:
            try:
                self._count(event)
            except (KeyError, TypeError, ValueError):  # a line of another version
                continue

    def collect(self) -> Iterable[Metric]:
        """Gauges as of now."""
        used = usage(self._cache.store.layout, self._cache.store.sight)
        sizes = GaugeMetricFamily(
            "dsec_cache_bytes", "Bytes in the cache directory, by what they are", labels=["state"]
        )
        states = {
            "resident": used.resident_bytes,
            "reserved": used.reserved_bytes,
            "in_flight": used.in_flight_bytes,
            "trash": used.trash_bytes,
        }
        for state, count in states.items():
            sizes.add_metric([state], count)
        yield sizes
        yield GaugeMetricFamily(
            "dsec_cache_capacity_bytes", "The most that bundles can take", value=self._cache.store.capacity_bytes()
        )
        ratio = GaugeMetricFamily(
            "dsec_cache_byte_hit_ratio", "Bytes that were near, of those wanted", labels=["scope"]
        )
        for scope in ("local", "total"):
            found = self.tally.hit_ratio(total=scope == "total")
            if found is not None:
                ratio.add_metric([scope], found)
        yield ratio
        under_way = sum(one.state in OPEN for one in self._prefetches.all())
        yield GaugeMetricFamily("dsec_prefetches_open", "Prefetches queued or fetching", value=under_way)
        if self.tally.bandwidth_bytes_per_s is not None:
            yield GaugeMetricFamily(
                "dsec_cache_bandwidth_bytes_per_second",
                "What the node's fetches get, newest first",
                value=self.tally.bandwidth_bytes_per_s,
            )

    def _count(self, event: events.Event) -> None:
        if event["what"] == EVICTED:
            self._evictions.labels(event["policy"]).inc()
            self._evicted.labels(event["policy"]).inc(int(event["bytes"]))
        elif event["what"] == ACQUIRED:
            before = (self.tally.local_bytes, self.tally.cluster_bytes, self.tally.origin_bytes)
            self.tally.add(event)
            after = (self.tally.local_bytes, self.tally.cluster_bytes, self.tally.origin_bytes)
            for source, was, now in zip(("local", "cluster", "origin"), before, after, strict=True):
                self._wanted.labels(source).inc(now - was)
            if not event["background"]:
                self._stall.inc(float(event["seconds"]))
                for phase in ("fetch", "verify"):
                    self._phases.labels(phase).observe(float(event[phase]))
