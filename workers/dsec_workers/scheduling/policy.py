"""The numbers a cluster's owner may choose, checked once, so that no choice can starve anybody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Weights, times and budgets of `plan()`; durations in seconds, costs in device-seconds.

    Raises `InvalidRequest` for a policy that breaks the promise of no starvation or has a value out of range.
    """

    version: str = "1"
    w_priority: float = 4.0
    """Weight of the base priority in the rank."""
    w_age: float = 3.0
    """Weight of the wait; at least w_share + w_gap + w_depth + w_small, so that waiting overcomes all in the end."""
    w_share: float = 1.0
    """Weight of how little the team has of its fair share."""
    w_gap: float = 0.5
    """Weight of how much of what the gang needs is free."""
    w_depth: float = 0.25
    """Weight of the team's part of all that wait."""
    w_small: float = 1.0
    """Weight of how few devices the gang asks for: the many small ones need not wait for the few large."""
    w_level: float = 6.0
    """Taken off the rank for every level of time sharing; more than all but priority together, so levels come first."""
    priority_scale: int = 100
    """The priority at which its factor reaches 1."""
    max_age_seconds: float = 4 * 3600.0
    """After that wait a team's oldest gang sorts by first submit time alone, once it is overtaken."""
    overtaking: float = 0.4
    """A wait counts while those who came before hold all but this part of the devices or less; 0 is always. The more,
    the longer the few large ones wait where a line is long, and the less the many small ones."""
    history_weight: float = 0.25
    """How much of a team's share is its decayed past usage instead of what it uses now."""
    usage_half_life_seconds: float = 24 * 3600.0
    """After that time past usage counts half."""
    charge_ahead_seconds: float = 600.0
    """A gang counts from its start as if it had already run this long, so that a burst does not see its own usage."""
    model_weights: Mapping[str, float] = field(default_factory=dict)
    """What an hour of a GPU model counts for in past usage; 1 for models that are not named."""
    keep_ended_seconds: float = 90 * 86400.0
    """Gangs that ended longer ago are forgotten."""
    keep_decisions_seconds: float = 90 * 86400.0
    """Entries of the decision log that are older are forgotten."""

    stranded_weight: float = 4.0
    """What room out of reach of those likely to come counts, against room for one of them."""
    scarcity: float = 0.3
    """Room for a shape counts double when that part of all cards is all the room there is for it."""
    cache_seconds_per_card: float = 600.0
    """Seconds of fetching saved that outweigh one card which those likely to come can no longer use. It decides only
    between nodes of the domain that is chosen anyway; a very large number makes placement blind to data."""
    failure_cards: float = 64.0
    """What one gang's recent failure on a node (a lost member, a start that failed) weighs against placing there, in
    cards which those likely to come can no longer use; a failure counts half after half an hour. Large, so that such a
    node is taken last of the domain that is chosen anyway; 0 makes placement blind to failures."""

    checkpoint_seconds: float = 10.0
    """Notice to devices free, for a gang that has not been measured."""
    restart_seconds: float = 30.0
    """Claim to first step, for a gang that has not been measured."""
    eviction_lambda_seconds: float = 120.0
    """Charged per device for every eviction a gang has already suffered."""
    class_penalty_seconds: Mapping[Kind, float] = field(default_factory=lambda: {Kind.INTERACTIVE: 600.0})
    """Charged per device for evicting a gang of that kind."""
    min_run_seconds: float = 300.0
    """A gang that has not committed since its start is left alone for at most this long."""

    search_budget: int = 20_000
    """Sets of victims looked at for one gang before the best one so far is taken."""
    exact_candidates: int = 20
    """Up to so many candidates in a domain the victims are proved cheapest."""
    cycle_search_budget: int = 30_000
    """Sets of victims looked at in one cycle, for all gangs together; then only free room is given out."""
    evictions_per_team: int | None = None
    """Evictions that the gangs of one team may suffer within `eviction_window_seconds`; None is no limit."""
    eviction_window_seconds: float = 3600.0
    """Over which a team's evictions are counted."""
    max_preemptions: int = 64
    """Gangs that may have others evicted for them in one cycle."""
    max_admissions: int = 10_000
    """Admissions in one cycle; gangs behind the last one are left undecided until the next."""
    max_retries: int = 1_000
    """Times in one cycle that remembered failures are dropped because an admission changed what others may evict."""

    consolidation: bool = False
    """Whether gangs may be moved so that what is free comes together."""
    move_interval_seconds: float = 6 * 3600.0
    """A gang is moved, or resized, at most once in that time."""
    resizing: bool = False
    """Whether running elastic gangs may be shrunk for others, and grown."""
    growth_worth: float = 10.0
    """Growth must bring this many times the device-seconds that resizing costs."""
    idle_horizon_seconds: float = 3600.0
    """How long devices that nobody waits for are expected to stay idle, at most."""
    time_sharing: bool = False
    """See `dsec_workers.scheduling.time_sharing`."""
    level_device_seconds: tuple[float, ...] = (3600.0, 36_000.0, 360_000.0)
    """Device-seconds at which a run's level falls."""
    lift_factor: float = 8.0
    """Who has waited so many times what it has run is lifted to the first level, once."""

    default_runtime_seconds: float = 3600.0
    """Expected runtime of a gang without max_runtime of whose like too few have ended; only for estimates."""
    eta_positions: int = 20
    """Waiting gangs per resource pool that get an estimate."""
    conditional_worth: float = 5.0
    """A gang passes on condition only if it gets at least this many times its checkpoint and restart."""

    def __post_init__(self) -> None:
        weights = (
            self.w_priority, self.w_age, self.w_share, self.w_gap, self.w_depth, self.w_small, self.w_level,
        )  # fmt: skip
        if not all(0 <= weight < float("inf") for weight in weights):
            raise InvalidRequest(f"policy {self.version}: weights must be finite and not negative, got {weights}")
        others = self.w_share + self.w_gap + self.w_depth + self.w_small
        if self.w_age < others:
            raise InvalidRequest(
                f"policy {self.version}: w_age is {self.w_age:g}, less than w_share + w_gap + w_depth + w_small = "
                f"{others:g}; "
                "raise w_age, or a gang could wait for ever behind younger ones of its own priority"
            )
        for name in (
            "max_age_seconds", "default_runtime_seconds", "priority_scale", "search_budget", "usage_half_life_seconds",
            "keep_ended_seconds", "keep_decisions_seconds", "cycle_search_budget", "eviction_window_seconds",
            "growth_worth", "idle_horizon_seconds", "lift_factor", "cache_seconds_per_card",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidRequest(f"policy {self.version}: {name}: {value:g}: write a finite number above 0")
        for name in (
            "checkpoint_seconds", "restart_seconds", "eviction_lambda_seconds", "min_run_seconds",
            "charge_ahead_seconds", "move_interval_seconds", "failure_cards",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidRequest(f"policy {self.version}: {name}: {value:g}: write a finite number, 0 or more")
        for model, weight in self.model_weights.items():
            if not 0 <= weight < float("inf"):
                raise InvalidRequest(
                    f"policy {self.version}: model_weights: {model} is {weight}; a weight is finite and not negative"
                )
        levels = self.level_device_seconds
        if not all(0 < low < high for low, high in zip(levels, (*levels[1:], float("inf")), strict=True)):
            raise InvalidRequest(f"policy {self.version}: level_device_seconds must rise from above 0, got {levels}")
        if self.evictions_per_team is not None and self.evictions_per_team < 0:
            raise InvalidRequest(f"policy {self.version}: evictions_per_team must not be negative")
        for name in ("history_weight", "overtaking"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InvalidRequest(f"policy {self.version}: {name}: {value:g}: write a number from 0 to 1")
        if self.exact_candidates > 24:
            raise InvalidRequest(f"policy {self.version}: exact_candidates above 24 cannot be searched in time")

    @property
    def usage_window_seconds(self) -> float:
        """What decayed usage adds up to for a device that is always held, in seconds."""
        return self.usage_half_life_seconds / log(2)
