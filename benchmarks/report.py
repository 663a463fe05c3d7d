"""One way to publish a benchmark, so that every figure has the same shape and can be compared by a program."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("dsec", "prefect", "numpy", "sqlalchemy")


def publish(
    name: str,
    figures: Mapping[str, float],
    *,
    seeds: Sequence[int] = (),
    aims: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    context: Mapping[str, Any] | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Print `figures` as a table and write `benchmarks/results/NAME.json`; returns the file's path.

    The file is `{"figures": {name: number}, "context": {versions, machine, seeds, date, …}}`. `aims` are texts such as
    "≤ 0.5" shown beside a figure, `rows` is a second table for people (kept in the file's context as "rows").
    """
    console = Console()
    if rows:
        detail = Table(title=f"{name}: detail", title_justify="left")
        for column in rows[0]:
            detail.add_column(str(column), justify="right" if isinstance(rows[0][column], (int, float)) else "left")
        for row in rows:
            detail.add_row(*(_shown(value) for value in row.values()))
        console.print(detail)
    table = Table(title=name, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("aim")
    for figure, value in figures.items():
        table.add_row(figure, _shown(value), (units or {}).get(figure, ""), (aims or {}).get(figure, ""))
    console.print(table)
    document = {
        "figures": dict(figures),
        "context": {
            "versions": _versions(),
            "machine": _machine(),
            "seeds": list(seeds),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **(context or {}),
            **({"rows": [dict(row) for row in rows]} if rows else {}),
        },
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    """What matters for comparing figures; no host name, so that results can be shown to anybody."""
    model, memory_gib = "", 0.0
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory_gib = round(int(line.split()[1]) / 2**20, 1)
            break
    cores = sum(1 for line in _lines("/proc/cpuinfo") if line.startswith("processor"))
    return {"system": sys.platform, "cpu": model or platform.processor(), "cores": cores, "memory_gib": memory_gib}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
