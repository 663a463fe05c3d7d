"""Whether a worker is alive, and whether it can do its part: what a kubelet asks, and a person at night.

*Alive* is told by turning: each step of the loop says when it came round, and one that has not for minutes hangs; only
a restart cures that. What a restart does not cure (ledger, cluster or Prefect API are away) never makes a worker dead.
*Ready* is a worker that knows whether it leads and can read the ledger. Prefect being away is told, and is no reason:
gangs run on, and a pod that is not ready would only hinder the draining of nodes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import Fenced
from dsec_workers.metrics import WorkerMetrics

STUCK_SECONDS = 120.0
"""Longer than any request or lock that a step may have to wait for."""
ELECTION, PLAN, CARRY = "election", "plan", "carry"
"""Steps that have to turn. Those that ask Prefect (poll, watch) may take as long as it does."""


@dataclass(kw_only=True)
class Turns:
    """When each step last came round (monotonic)."""

    clock: Clock
    metrics: WorkerMetrics
    last: dict[str, float] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)

    def expect(self, *steps: str) -> None:
        """From now on these have to turn."""
        for step in steps:
            self.last[step] = self.clock.monotonic()
            self.needed.add(step)

    def excuse(self, *steps: str) -> None:
        """These have no more to do."""
        self.needed.difference_update(steps)

    @contextmanager
    def turn(self, step: str) -> Iterator[None]:
        """One turn of `step`; one that fails has turned too."""
        began, failed = self.clock.monotonic(), False
        try:
            yield
        except Fenced:
            raise
        except Exception:
            failed = True
            raise
        finally:
            self.last[step] = now = self.clock.monotonic()
            self.metrics.cycle(step, now - began, failed=failed)

    def ages(self) -> dict[str, float]:
        """Seconds since each step last came round."""
        now = self.clock.monotonic()
        return {step: now - at for step, at in self.last.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a worker knows of itself."""

    pool: str
    holder: str
    role: str
    """`leader`, `standby`, or `starting` before the first look at the lease."""
    term: int | None
    adopted: bool
    """A leader: whether it knows what its predecessor left."""
    draining: bool
    ledger_answers: bool
    prefect_away: bool
    cluster_away: bool = False


def hangs(ages: Mapping[str, float], needed: set[str], *, most: float = STUCK_SECONDS) -> list[str]:
    """Why the worker is not alive, one reason a step; empty while it is. Pure."""
    return [
        f"the {step} step has not come round for {ages[step]:.0f} s"
        for step in sorted(needed)
        if ages.get(step, 0.0) > most
    ]


def hinders(standing: Standing) -> list[str]:
    """Why the worker is not ready; empty when it is. Pure."""
    found = []
    if standing.role == "starting":
        found.append("it has not looked at the lease yet")
    if not standing.ledger_answers:
        found.append("the ledger does not answer")
    if standing.role == "leader" and not standing.adopted:
        found.append("it does not know yet what its predecessor left running")
    if standing.draining:
        found.append("it drains")
    return found


def told(standing: Standing, ages: Mapping[str, float], reasons: list[str]) -> dict[str, Any]:
    """The answer as JSON: `reasons` why not, and what else is worth knowing. Pure."""
    return {
        "ok": not reasons,
        "reasons": reasons,
        "pool": standing.pool,
        "worker": standing.holder,
        "role": standing.role,
        "term": standing.term,
        "draining": standing.draining,
        "ledger": "answers" if standing.ledger_answers else "away",
        "prefect": "away" if standing.prefect_away else "answers",
        "cluster": "away" if standing.cluster_away else "answers",
        "seconds_since": {step: round(age, 1) for step, age in sorted(ages.items())},
    }
