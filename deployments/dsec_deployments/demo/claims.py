"""Claims: what the demo promises, whether it held, and the figure that shows it."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.gateways import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One promise. `figure` is the number that decided it, in `unit`."""

    name: str
    held: bool
    figure: float | int | None = None
    unit: str = ""
    remark: str = ""
    """What was seen, for a claim that did not hold."""


@dataclass
class Claims:
    """The claims made so far, in order."""

    made: list[Claim] = field(default_factory=list)

    def make(
        self, name: str, held: bool, figure: float | int | None = None, unit: str = "", *, remark: str = ""
    ) -> Claim:
        """Record one claim and return it."""
        claim = Claim(name=name, held=bool(held), figure=figure, unit=unit, remark=remark)
        self.made.append(claim)
        return claim

    @property
    def all_held(self) -> bool:
        """Whether there are claims and each one held."""
        return bool(self.made) and all(claim.held for claim in self.made)

    def save(self, path: Path) -> None:
        """Write them as `{"claims": [{"name", "held", "figure", "unit"}]}`."""
        rows = [
            {name: value for name, value in dataclasses.asdict(claim).items() if name != "remark" or value}
            for claim in self.made
        ]
        text = json.dumps({"claims": rows}, indent=1, ensure_ascii=False) + "\n"
        files.write(path, text.encode(), at="demo.claims.write")
