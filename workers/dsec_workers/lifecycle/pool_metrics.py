"""What a pool is at this moment, for Prometheus: devices, queue, teams. Only the leader tells, or sums would double.

Nothing here is kept up to date by the loop. Gangs are those that the last plan read; the rest is counted by the
database when somebody scrapes, at most once in a few seconds. A ledger that does not answer in time leaves these
metrics out: a figure that is not known is better absent than old.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dsec_blocks.ledger import Figures, Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.teams import Team

FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 4.0
"""Less than a scrape's usual ten seconds."""
NO_REASON_YET = "new"


def pool_metrics(
    pool: str,
    figures: Figures,
    gangs: Sequence[Gang],
    teams: Mapping[str, Team],
    *,
    model_weights: Mapping[str, float],
    now: float,
) -> list[Metric]:
    """Everything that is told of the pool. Pure."""
    told = _Told(pool)
    _devices(told, figures)
    _gangs(told, figures, gangs, now)
    _teams(told, figures, teams, model_weights)
    told.gauge(
        "dsec_reservations_leaked", "Reservations of attempts that hold no devices: always 0", (), {(): figures.leaked}
    )
    told.gauge(
        "dsec_agent_last_report_timestamp_seconds",
        "When the node's agent last said what it holds, in seconds since the epoch",
        ("node",),
        {(node,): at for node, at in figures.reported_at.items()},
    )
    return told.families


Values = Mapping[Any, float]
"""Labels beside the pool, as a tuple of texts → value."""


@dataclass
class _Told:
    pool: str
    families: list[Metric] = field(default_factory=list)

    def gauge(self, name: str, text: str, labels: Sequence[str], values: Values) -> None:
        self._add(GaugeMetricFamily(name, text, labels=["pool", *labels]), values)

    def counter(self, name: str, text: str, labels: Sequence[str], values: Values) -> None:
        self._add(CounterMetricFamily(name, text, labels=["pool", *labels]), values)

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> None:
        for labels, value in values.items():
            family.add_metric([self.pool, *labels], value)
        self.families.append(family)


def _devices(told: _Told, figures: Figures) -> None:
    by = ("model", "health")
    counts = {(each.model, each.health): each for each in figures.devices}
    told.gauge("dsec_pool_devices", "Devices of the pool", by, {key: each.total for key, each in counts.items()})
    told.gauge(
        "dsec_pool_devices_held", "Devices that a gang holds", by, {key: each.held for key, each in counts.items()}
    )
    told.gauge(
        "dsec_pool_devices_promised",
        "Devices promised to the gang behind their holder",
        by,
        {key: each.promised for key, each in counts.items()},
    )
    told.gauge(
        "dsec_pool_devices_free",
        "Devices that a gang could get now",
        ("model",),
        {(model,): count for model, count in _free(figures).items()},
    )


def _gangs(told: _Told, figures: Figures, gangs: Sequence[Gang], now: float) -> None:
    waiting = [gang for gang in gangs if gang.state is GangState.WAITING]
    states = Counter(gang.state for gang in gangs)
    told.gauge(
        "dsec_gangs",
        "Gangs that have not ended, by state",
        ("state",),
        {(state,): states[state] for state in GangState if state is not GangState.ENDED},
    )
    counts = Counter((gang.team, _reason(gang)) for gang in waiting)
    told.gauge("dsec_gangs_waiting", "Gangs that wait, by reason", ("team", "reason"), counts)
    wanted: dict[tuple[str, ...], float] = defaultdict(float)
    longest: dict[tuple[str, ...], float] = defaultdict(float)
    despite_room: dict[tuple[str, ...], float] = defaultdict(float)
    free = _free(figures)
    for gang in waiting:
        by_reason, waits = (gang.team, _reason(gang)), waits_seconds(gang, now)
        wanted[gang.team,] += gang.request.devices
        longest[by_reason] = max(longest[by_reason], waits)
        if has_room(gang, free):
            despite_room[by_reason] = max(despite_room[by_reason], waits)
    told.gauge("dsec_gangs_waiting_devices", "Devices that waiting gangs ask for", ("team",), wanted)
    by = ("team", "reason")
    told.gauge("dsec_queue_longest_wait_seconds", "How long the gang has waited that waits longest", by, longest)
    told.gauge(
        "dsec_queue_longest_wait_despite_room_seconds",
        "The same of gangs that ask for no more devices than are free, whatever their shape",
        by,
        despite_room,
    )


def _teams(told: _Told, figures: Figures, teams: Mapping[str, Team], model_weights: Mapping[str, float]) -> None:
    told.gauge(
        "dsec_team_quota_devices",
        "Devices that are the team's whenever it wants them",
        ("team",),
        {(team.name,): team.nominal_devices for team in teams.values()},
    )
    told.gauge(
        "dsec_team_limit_devices",
        "The most that the team may hold, where it has a limit",
        ("team",),
        {(team.name,): team.limit_devices for team in teams.values() if team.limit_devices is not None},
    )
    held: dict[tuple[str, ...], float] = {(team, ""): 0.0 for team in teams}
    for (team, model), count in figures.held_by_team.items():
        held.pop((team, ""), None)
        held[team, model] = count
    told.gauge("dsec_team_held_devices", "Devices that the team's gangs hold", ("team", "model"), held)
    told.counter(
        "dsec_team_gpu_seconds",
        "Device-seconds that the team has been charged",
        ("team", "model"),
        figures.device_seconds,
    )
    cost: dict[tuple[str, ...], float] = defaultdict(float)
    for (team, model), seconds in figures.device_seconds.items():
        cost[team,] += seconds * model_weights.get(model, 1.0)
    told.counter(
        "dsec_team_cost_gpu_seconds",
        "The same, each model by its weight in the policy: an estimate of cost",
        ("team",),
        cost,
    )


def waits_seconds(gang: Gang, now: float) -> float:
    """How long the gang has waited this time: since it was due, or since its last attempt left. Pure."""
    return max(0.0, now - max(gang.eligible_at, float(gang.outcome.get("at") or -math.inf)))


def has_room(gang: Gang, free: Mapping[str, int]) -> bool:
    """Whether as many devices are free as the gang asks for, in a model that will do. Pure."""
    least = (gang.request.min_nodes or gang.request.nodes) * gang.request.devices_per_node
    models = gang.request.gpu_models or tuple(free)
    return any(free.get(model, 0) >= max(1, least) for model in models)


def _free(figures: Figures) -> dict[str, int]:
    free: dict[str, int] = Counter()
    for each in figures.devices:
        free[each.model] += each.free
    return free


def _reason(gang: Gang) -> str:
    return gang.reason_code or NO_REASON_YET


@dataclass(kw_only=True, eq=False)
class PoolMetrics(Collector):
    """The pool's metrics as a collector: `refresh` reads, `collect` only tells what was read."""

    pool: str
    ledger: Ledger
    clock: Clock
    gangs: Callable[[], Mapping[str, Gang] | None]
    """As the last plan read them; None while this worker does not lead."""
    model_weights: Callable[[], Mapping[str, float]]
    _families: list[Metric] = field(default_factory=list)
    _read_at: float = -math.inf
    _reading: bool = False
    _limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    """Of its own: a ledger that hangs may have taken every thread of the others."""

    def collect(self) -> Iterable[Metric]:
        """What the last refresh found."""
        return self._families

    async def refresh(self) -> None:
        """Count anew, if the last count is old. Raises nothing: what cannot be read in time is left out."""
        if self.gangs() is None:
            self._families, self._read_at = [], -math.inf
            return
        if self._reading or self.clock.monotonic() - self._read_at < FRESH_SECONDS:
            return
        with anyio.move_on_after(PATIENCE_SECONDS) as patience:
            self._families = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True, limiter=self._limiter)
            self._read_at = self.clock.monotonic()
        if patience.cancelled_caught:
            self._families = []

    def _read(self) -> list[Metric]:
        self._reading = True
        try:
            gangs = self.gangs() or {}
            return pool_metrics(
                self.pool,
                self.ledger.figures(self.pool),
                list(gangs.values()),
                self.ledger.teams(self.pool),
                model_weights=self.model_weights(),
                now=self.clock.now(),
            )
        except LedgerError:
            return []
        finally:
            self._reading = False
