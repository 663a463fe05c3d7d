"""What the adapter's dealings with the API server look like from outside; only here are these metrics named.

Every worker tells them, standbys too: each follows the cluster by itself. `namespace` is empty for what is read in all.
"""

from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

_FOLLOWED = ["pool", "kind", "namespace"]
THROTTLED = 429
BROKEN = "broken"


class KubernetesMetrics:
    """One worker's; in a registry of their own where nobody asks for them."""

    def __init__(self, pool: str = "", registry: CollectorRegistry | None = None) -> None:
        told: dict[str, Any] = {"registry": registry if registry is not None else CollectorRegistry()}
        self._pool = pool
        self._requests = Counter(
            "dsec_kubernetes_requests",
            "Requests to the API server: ok, refused, throttled (429) or unavailable (5xx, no answer)",
            ["pool", "method", "outcome"],
            **told,
        )
        self._pauses = Counter(
            "dsec_kubernetes_retry_after_seconds",
            "What the API server asked this worker to wait (Retry-After)",
            ["pool"],
            **told,
        )
        self._current = Gauge(
            "dsec_kubernetes_mirror_current", "1 while the copy of a kind follows the API server", _FOLLOWED, **told
        )
        self._heard = Gauge(
            "dsec_kubernetes_mirror_heard_timestamp_seconds",
            "When the API server last said something of a kind, if only that it is still there",
            _FOLLOWED,
            **told,
        )
        self._lists = Counter("dsec_kubernetes_mirror_lists", "Times that a kind was listed whole", _FOLLOWED, **told)
        self._watches = Counter("dsec_kubernetes_mirror_watches", "Watches of a kind that began", _FOLLOWED, **told)
        self._failures = Counter(
            "dsec_kubernetes_mirror_failures",
            "Lists and watches of a kind that failed, by what they failed of",
            [*_FOLLOWED, "reason"],
            **told,
        )
        self._pauses.labels(pool)

    def request(self, method: str, status: int | None, *, retry_after: float | None = None) -> None:
        """One request was answered with `status`; None: it was not answered."""
        self._requests.labels(self._pool, method, _outcome(status)).inc()
        if retry_after:
            self._pauses.labels(self._pool).inc(retry_after)

    def followed(self, path: str) -> "Followed":
        """The figures of the mirror of `path`."""
        return Followed(self, path)


class Followed:
    """What one mirror tells."""

    def __init__(self, all_of_them: KubernetesMetrics, path: str) -> None:
        self._all = all_of_them
        self._labels = (all_of_them._pool, *_kind_and_namespace(path))

    def listed(self) -> None:
        """Everything was listed: the copy is current."""
        self._all._lists.labels(*self._labels).inc()
        self.follows()

    def watching(self) -> None:
        """A watch begins."""
        self._all._watches.labels(*self._labels).inc()

    def heard(self, at: float) -> None:
        """The API server said something, `at` in seconds since the epoch."""
        self._all._heard.labels(*self._labels).set(at)

    def follows(self) -> None:
        """The copy is current (again)."""
        self._all._current.labels(*self._labels).set(1)

    def failed(self, reason: str) -> None:
        """A list or a watch failed: the copy may be stale."""
        self._all._current.labels(*self._labels).set(0)
        self._all._failures.labels(*self._labels, reason).inc()

    def passed_over(self) -> None:
        """One object was not understood; the copy goes on without what follows from it."""
        self._all._failures.labels(*self._labels, BROKEN).inc()

    def stopped(self) -> None:
        """Nobody follows it any more, so nobody is to miss its news."""
        for gauge in (self._all._current, self._all._heard):
            with suppress(KeyError):  # it never followed, and this is an older client library
                gauge.remove(*self._labels)


def _kind_and_namespace(path: str) -> tuple[str, str]:
    """Of `/api/v1/namespaces/NAMESPACE/KIND`, `/api/v1/KIND` and `/apis/GROUP/VERSION/KIND`."""
    parts = path.strip("/").split("/")
    return parts[-1], parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-1] else ""


def _outcome(status: int | None) -> str:
    if status is None or status >= 500:
        return "unavailable"
    if status == THROTTLED:
        return "throttled"
    return "refused" if status >= 400 else "ok"
