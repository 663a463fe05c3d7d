"""The cache, measured: (a) eviction, (b) transfer, (c) start to ready; `make bench-cache` writes cache.json.

    python -m benchmarks.cache [--only a|b|c] [--resume]

Each part is a module with `measure() -> (figures, rows)` and `AIMS`. Its figures are in the result file as soon as it
has been measured; a part that is run alone replaces its own and leaves the others as they were. So does one that fails:
the others are measured all the same, and the call ends with exit code 1.
"""

import argparse
import json
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from benchmarks import model_starts
from benchmarks.report import RESULTS, publish

PARTS = {"a": "benchmarks.cache_eviction", "b": "benchmarks.cache_transfer", "c": "benchmarks.cache_start"}
RESUMABLE = timedelta(hours=12)


def main() -> None:
    """Measure the parts, compose, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="Only this part (may be repeated).")
    parser.add_argument("--resume", action="store_true", help="Leave out the parts measured in the last 12 hours.")
    told = parser.parse_args()
    figures, context = _before()
    chosen = told.only or sorted(PARTS)
    if told.resume:
        chosen = [part for part in chosen if not _is_fresh(context["measured"].get(part))]
    failed = []
    for part in chosen:
        print(f"part {part} of {', '.join(chosen)}: {PARTS[part]}", flush=True)
        began = time.monotonic()
        module = import_module(PARTS[part])
        try:
            measured, rows = module.measure()
        except Exception:  # noqa: BLE001 - whatever became of one part, the others are of use
            traceback.print_exc()
            failed.append(part)
            continue
        figures.update(measured)
        context["aims"].update(module.AIMS)
        context["parts"][part] = [dict(row) for row in rows]
        context["measured"][part] = datetime.now(UTC).isoformat(timespec="seconds")
        context["minutes"][part] = round((time.monotonic() - began) / 60, 1)
        if rows:
            publish(f"cache_{part}", {}, rows=rows).unlink()  # for the table on the screen only
        publish("cache", figures, seeds=model_starts.SEEDS, aims=context["aims"], context=context)
    print(f"minutes by part: {context['minutes']}", flush=True)
    if failed:
        sys.exit(f"not measured: part {', '.join(failed)}; again with --resume")


def _before() -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """What was measured before, part by part."""
    try:
        told = json.loads((RESULTS / "cache.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = {"figures": {}, "context": {}}
    kept = ("parts", "aims", "measured", "minutes")
    return dict(told["figures"]), {name: dict(told["context"].get(name, {})) for name in kept}


def _is_fresh(measured: str | None) -> bool:
    return measured is not None and datetime.now(UTC) - datetime.fromisoformat(measured) < RESUMABLE


if __name__ == "__main__":
    main()
