"""Finished rows of the Kubernetes benchmark, kept as they come, so that one that was cut short goes on where it was."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS

RESUMABLE = timedelta(hours=12)
PARTS = RESULTS / "kube.parts.jsonl"
Key = tuple[float, str, str, str]
"""Scale, ledger, scenario and system: what a row is the measurement of."""


@dataclass(frozen=True)
class Parts:
    """The file of the rows. What is written last of a key counts."""

    path: Path = PARTS

    def keep(self, key: Key, row: Mapping[str, Any]) -> None:
        """Write down what was measured; a measurement that failed is no part, and is made again."""
        if row.get("failed"):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        told = {"key": list(key), "at": datetime.now(UTC).isoformat(timespec="seconds"), "row": dict(row)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told, ensure_ascii=False) + "\n")

    def fresh(self, wanted: Iterable[Key]) -> dict[Key, dict[str, Any]]:
        """The newest row of each of the `wanted` that was measured in the last 12 hours."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        asked, found, oldest = set(wanted), {}, datetime.now(UTC) - RESUMABLE
        for line in lines:
            try:
                told = json.loads(line)
                key, at = tuple(told["key"]), datetime.fromisoformat(told["at"])
            except (ValueError, KeyError, TypeError):  # a line that was cut short
                continue
            if key in asked and at >= oldest:
                found[key] = told["row"]
        return found
