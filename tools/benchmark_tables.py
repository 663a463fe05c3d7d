"""The figures of benchmarks/README.md: every file in benchmarks/results, rendered between the page's markers.

    python tools/benchmark_tables.py            # write them
    python tools/benchmark_tables.py --check    # exit code 1 if the page would change

The results themselves are not in the repository; the page keeps the last ones measured, with their date and machine.
A section whose benchmark has no result here, or only a part of one (`NAME-part.json`), is left as it is.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Render; 1 with one line when the page has no place for a result, or is not up to date."""
    whole = [path for path in sorted(RESULTS.glob("*.json")) if not path.stem.endswith("-part")]
    results = {path.stem: json.loads(path.read_text()) for path in whole}
    before = PAGE.read_text()
    homeless = sorted(results.keys() - {match["name"] for match in BLOCK.finditer(before)})
    if homeless:
        print(f"{PAGE.name} has no section for {', '.join(homeless)}", file=sys.stderr)
        return 1
    after = render(before, results)
    if "--check" in sys.argv[1:]:
        return int(after != before)
    PAGE.write_text(after)
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(sorted(results)) or 'no results'}")
    return 0


def render(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """`page` with the table of each result in its section."""

    def block(match: re.Match[str]) -> str:
        result = results.get(match["name"])
        return match[0] if result is None else f"{match[1]}{table(result)}{match[3]}"

    return BLOCK.sub(block, page)


def table(result: Mapping[str, Any]) -> str:
    """One result: when and where it was measured, and its figures."""
    context = result["context"]
    machine, versions = context.get("machine", {}), context.get("versions", {})
    where = [f"{machine['cores']} cores ({machine['cpu']})"] if {"cores", "cpu"} <= machine.keys() else []
    where += [f"{machine['memory_gib']:g} GiB"] if "memory_gib" in machine else []
    where += [f"{name} {versions[name]}" for name in ("python", "prefect") if name in versions]
    bounds = context.get("at most", {})
    rows = [f"| `{name}` | {'≤ ' * (name in bounds)}{number(value)} |" for name, value in result["figures"].items()]
    head = f"Measured {str(context['date'])[:16].replace('T', ' ')} UTC on {', '.join(where)}."
    return "\n".join([head, "", "| figure | value |", "|---|---:|", *rows, ""])


def number(value: float) -> str:
    """Three digits that count; whole numbers whole."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
