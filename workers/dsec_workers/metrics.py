"""What a worker counts and times, for Prometheus: the one place that knows these metrics' names.

Every metric carries the pool, so that one Prometheus may watch many. What is counted here is what this process did:
counters begin at 0 with it, and those of a standby stand still. What the pool *is* (devices, queue, quota) is not
counted but read when somebody asks: see `lifecycle.pool_metrics`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.gangs import Gang

_Asked = ParamSpec("_Asked")
_Plan = TypeVar("_Plan")

_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_CYCLE = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_WAIT = (1, 5, 15, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 259_200)
_START = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_SIZES = ((1, "0-1"), (8, "2-8"), (64, "9-64"))
_ENDS = frozenset({"Completed", "Failed", "Crashed", "Cancelled", "TimedOut", "Suspended", "Rescheduled", "Deleted"})
"""Final states that are told apart; flows may invent others, as many as they like."""


def size_class(devices: int) -> str:
    """Gangs of about the same size wait about as long: `0-1`, `2-8` (a node), `9-64`, `65+` devices."""
    return next((name for most, name in _SIZES if devices <= most), "65+")


class WorkerMetrics:
    """One worker's counters, gauges and histograms, and the registry that they are in."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.registry = CollectorRegistry()
        self.ledger_answers = True
        """Whether the last use of the ledger succeeded."""
        ProcessCollector(registry=self.registry)
        told: dict[str, Any] = {"registry": self.registry}
        self._leader = Gauge("dsec_leader", "1 while this worker leads its pool", ["pool"], **told)
        self._terms = Counter("dsec_terms", "Times that this worker began to lead", ["pool"], **told)
        self._cycle = Histogram(
            "dsec_cycle_seconds", "One turn of a step of the loop", ["pool", "step"], buckets=_CYCLE, **told
        )
        self._cycle_failures = Counter(
            "dsec_cycle_failures", "Turns that failed and came round again", ["pool", "step"], **told
        )
        self._plan = Histogram(
            "dsec_plan_seconds", "Deciding alone, without reading or writing", ["pool"], buckets=_CYCLE, **told
        )
        self._ledger = Histogram(
            "dsec_ledger_transaction_seconds", "One use of the ledger", ["pool", "kind"], buckets=_SHORT, **told
        )
        self._ledger_errors = Counter(
            "dsec_ledger_errors", "Uses of the ledger in which the database failed", ["pool", "kind"], **told
        )
        self._ledger_up = Gauge("dsec_ledger_up", "1 if the last use of the ledger succeeded", ["pool"], **told)
        self._prefect = Histogram(
            "dsec_prefect_request_seconds", "One request to the Prefect API", ["pool", "method"], buckets=_SHORT, **told
        )
        self._prefect_requests = Counter(
            "dsec_prefect_requests", "Requests to the Prefect API", ["pool", "method", "route", "outcome"], **told
        )
        self._prefect_away = Gauge(
            "dsec_prefect_api_away", "1 while the Prefect API does not answer the leader's reads", ["pool"], **told
        )
        self._wait = Histogram(
            "dsec_queue_wait_seconds",
            "From due to Pending, of first starts",
            ["pool", "team", "size"],
            buckets=_WAIT,
            **told,
        )
        self._admissions = Counter("dsec_admissions", "Gangs that were given their devices", ["pool", "team"], **told)
        self._evictions = Counter("dsec_evictions", "Gangs that were asked to leave", ["pool", "team"], **told)
        self._restarts = Counter(
            "dsec_restarts", "Gangs put back into the queue after a failure", ["pool", "team", "cause"], **told
        )
        self._undone = Counter("dsec_claims_undone", "Admissions that were taken back", ["pool", "team"], **told)
        self._ended = Counter("dsec_runs_ended", "Runs that ended, by final state", ["pool", "team", "state"], **told)
        self._handover = Histogram(
            "dsec_handover_seconds", "From an eviction's notice to free devices", ["pool"], buckets=_START, **told
        )
        self._start = Histogram(
            "dsec_start_seconds", "Stages of a start, which overlap", ["pool", "stage"], buckets=_START, **told
        )
        self._leader.labels(pool).set(0)
        self._ledger_up.labels(pool).set(1)
        self._prefect_away.labels(pool).set(0)
        self._terms.labels(pool)

    def leads(self, leads: bool) -> None:
        """A term of this worker begins, or has ended."""
        self._leader.labels(self.pool).set(leads)
        if leads:
            self._terms.labels(self.pool).inc()
        self.prefect_away(False)

    def cycle(self, step: str, seconds: float, *, failed: bool) -> None:
        """One turn of a step of the loop."""
        self._cycle.labels(self.pool, step).observe(seconds)
        if failed:
            self._cycle_failures.labels(self.pool, step).inc()

    def timing(self, plan: Callable[_Asked, _Plan], clock: Clock) -> Callable[_Asked, _Plan]:
        """`plan`, each call of it timed."""

        @wraps(plan)
        def timed(*args: _Asked.args, **more: _Asked.kwargs) -> _Plan:
            began = clock.monotonic()
            try:
                return plan(*args, **more)
            finally:
                self._plan.labels(self.pool).observe(clock.monotonic() - began)

        return timed

    def ledger(self, kind: str, seconds: float, failed: bool) -> None:
        """One use of the ledger; fulfils `dsec_blocks.ledger.transaction.Observe`."""
        self._ledger.labels(self.pool, kind).observe(seconds)
        self.ledger_answers = not failed
        self._ledger_up.labels(self.pool).set(not failed)
        if failed:
            self._ledger_errors.labels(self.pool, kind).inc()

    def prefect(self, method: str, route: str, seconds: float, outcome: str) -> None:
        """One request to the Prefect API; `outcome` is ok, refused or unavailable."""
        self._prefect.labels(self.pool, method).observe(seconds)
        self._prefect_requests.labels(self.pool, method, route, outcome).inc()

    def prefect_away(self, away: bool) -> None:
        """Whether the leader's reads of the Prefect API fail."""
        self._prefect_away.labels(self.pool).set(away)

    def claimed(self, gang: Gang, now: float) -> None:
        """The run is Pending. A gang that ran before has had its wait counted; the time it ran is none."""
        if gang.evictions + gang.infrastructure_restarts == 0:
            wait = max(0.0, now - gang.eligible_at)
            self._wait.labels(self.pool, gang.team, size_class(gang.request.devices)).observe(wait)

    def decided(self, stage: str, outcome: str, *, team: str, detail: Mapping[str, Any]) -> None:
        """An entry of the decision log."""
        match stage, outcome:
            case "plan", "admit":
                self._admissions.labels(self.pool, team).inc()
            case "evict", "noticed":
                self._evictions.labels(self.pool, team).inc()
            case "claim", "undone":
                self._undone.labels(self.pool, team).inc()
            case "end", "requeued":
                cause = str(detail.get("kind") or "exited")
                if cause != "evicted":
                    self._restarts.labels(self.pool, team, cause).inc()
            case "end", _:
                self._ended.labels(self.pool, team, outcome if outcome in _ENDS else "other").inc()
            case _:
                pass

    def handed_over(self, seconds: float) -> None:
        """An evicted gang's devices are free."""
        self._handover.labels(self.pool).observe(max(0.0, seconds))

    def started(self, stage: str, seconds: float) -> None:
        """A stage of a start took so long."""
        self._start.labels(self.pool, stage).observe(max(0.0, seconds))
