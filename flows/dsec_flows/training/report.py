"""The report of a training run: a page in the Prefect UI that says what ran where, and where it can go on from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What a training run came to."""

    work: str
    shape: str
    nodes: Sequence[str]
    ranks: int
    attempt: int | None
    restarts: int
    seconds: float
    store: str
    commits: Sequence[tuple[int, int]]
    """(step, attempt), newest first."""
    results: Sequence[Any]

    def to_markdown(self) -> str:
        """The page."""
        commits = ", ".join(f"step {step} (attempt {attempt})" for step, attempt in self.commits) or "none"
        rows = [
            ("Ran", f"`{self.work}`"),
            ("Gang", f"{self.shape}, {self.ranks} rank{'s' if self.ranks != 1 else ''} on {', '.join(self.nodes)}"),
            ("Attempt", str(self.attempt or "local")),
            ("Restarts after a failure", str(self.restarts)),
            ("Time in this attempt", format_duration(self.seconds)),
            ("Checkpoints", f"{commits} at `{self.store}`"),
        ]
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        results = "\n".join(f"| {rank} | {_short(value)} |" for rank, value in enumerate(self.results))
        return f"| | |\n|---|---|\n{table}\n\n| Rank | Result |\n|---|---|\n{results}\n"


def _short(value: Any) -> str:
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= 120 else f"{text[:117]}…"
