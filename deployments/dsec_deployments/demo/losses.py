"""The loss curves that the training run writes, one line a step, and what two of them have in common."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Step → loss, and the steps that were run more than once."""

    loss: dict[int, float]
    repeated: tuple[int, ...]

    @property
    def steps(self) -> list[int]:
        """The steps, in order."""
        return sorted(self.loss)

    def until(self, step: int) -> "Curve":
        """The part before `step`."""
        loss = {s: value for s, value in self.loss.items() if s < step}
        return Curve(loss=loss, repeated=tuple(s for s in self.repeated if s < step))


def read_curve(path: Path) -> Curve:
    """The curve in a file of `{"step", "loss"}` lines; one that is not there yet is empty."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
    counts = Counter(line["step"] for line in lines)
    repeated = tuple(sorted(step for step, count in counts.items() if count > 1))
    return Curve(loss={line["step"]: line["loss"] for line in lines}, repeated=repeated)


def largest_difference(one: Curve, other: Curve) -> float:
    """The largest difference at any step; infinite unless both have the same steps."""
    if one.steps != other.steps or not one.steps:
        return float("inf")
    return max(abs(one.loss[step] - other.loss[step]) for step in one.steps)
