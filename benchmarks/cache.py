"""The cache, measured: (a) eviction, (b) transfer, (c) start to ready; `make bench-cache` writes cache.json.

    python -m benchmarks.cache [--only a|b|c]

Each part is a module with `measure() -> (figures, rows)` and `AIMS`; a part that is run alone replaces its own figures
in the result file and leaves the others as they were measured.
"""

import argparse
import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks import model_starts
from benchmarks.report import RESULTS, publish

PARTS = {"a": "benchmarks.cache_eviction", "b": "benchmarks.cache_transfer", "c": "benchmarks.cache_start"}


def main() -> None:
    """Measure the parts, compose, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="Only this part (may be repeated).")
    chosen = parser.parse_args().only or [part for part in PARTS if find_spec(PARTS[part])]
    figures, rows, aims = _before()
    for part in chosen:
        module = import_module(PARTS[part])
        measured, told = module.measure()
        figures.update(measured)
        aims.update(module.AIMS)
        rows[part] = [dict(row) for row in told]
    context: dict[str, Any] = {"parts": rows, "aims": aims}
    for part in chosen:
        if rows[part]:
            publish(f"cache_{part}", {}, rows=rows[part]).unlink()  # for the table on the screen only
    publish("cache", figures, seeds=model_starts.SEEDS, aims=aims, context=context)


def _before() -> tuple[dict[str, float], dict[str, list[dict[str, Any]]], dict[str, str]]:
    """What was measured before, part by part."""
    try:
        told = json.loads((RESULTS / "cache.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}, {}, {}
    return dict(told["figures"]), dict(told["context"].get("parts", {})), dict(told["context"].get("aims", {}))


if __name__ == "__main__":
    main()
