"""What the ranks of one `gang.run` came back with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.exits import meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """How one rank ended: `value` is what its function returned (a command: its exit code)."""

    rank: int
    member: int
    exit: int
    value: Any = None
    error: Mapping[str, str] | None = None

    @property
    def failed(self) -> bool:
        """Whether it neither returned nor left because of a notice."""
        return self.exit != 0 or self.error is not None


class Results(list[Any]):
    """What each rank returned, in rank order: `results[0]` is rank 0's."""

    def __init__(self, outcomes: Sequence[RankOutcome]) -> None:
        self.outcomes = tuple(sorted(outcomes, key=lambda outcome: outcome.rank))
        super().__init__(outcome.value for outcome in self.outcomes)


class GangRunError(DsecError):
    """At least one rank failed; the message has each failed rank's traceback."""

    def __init__(self, outcomes: Sequence[RankOutcome], *, what: str = "gang.run") -> None:
        self.outcomes = tuple(sorted(outcomes, key=lambda outcome: outcome.rank))
        self.failed = tuple(outcome for outcome in self.outcomes if outcome.failed)
        self.what = what
        ranks = ", ".join(str(outcome.rank) for outcome in self.failed)
        word = "rank" if len(self.failed) == 1 else "ranks"
        head = f"{what}: {word} {ranks} of {len(self.outcomes)} failed"
        super().__init__("\n".join([head, *(_describe(outcome) for outcome in sorted(self.failed, key=_as_a_cause))]))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.outcomes, self.what))


def _rebuilt(outcomes: Sequence[RankOutcome], what: str) -> GangRunError:
    return GangRunError(outcomes, what=what)


def _as_a_cause(outcome: RankOutcome) -> tuple[bool, bool, int]:
    """Sort key: what raised comes first, what was killed last, since the first failure stops the other ranks."""
    return outcome.error is None, outcome.exit < 0, outcome.rank


def _describe(outcome: RankOutcome) -> str:
    where = f"--- rank {outcome.rank} (member {outcome.member})"
    if outcome.error is None:
        how = f"was killed by signal {-outcome.exit}" if outcome.exit < 0 else f"exited with status {outcome.exit}"
        means = meaning(outcome.exit)
        return f"{where} {how}{means and f' ({means})'}; its output is in the run's log"
    trace = (outcome.error.get("traceback") or "").rstrip()
    said = f"{outcome.error.get('type', 'Error')}: {outcome.error.get('message', '')}"
    return f"{where} {said}" + (f"\n{trace}" if trace else "")
