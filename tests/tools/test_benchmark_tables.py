"""The figures in benchmarks/README.md come from the result files and stay when there is none."""

import re

from tools.benchmark_tables import BLOCK, PAGE, render

RESULT = {
    "figures": {"wall_ratio": 8.4567, "runs": 100.0, "rate": 2266.3},
    "context": {
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cores": 2, "cpu": "Any", "memory_gib": 4.0},
        "versions": {"python": "3.11.7", "prefect": "3.9.1"},
    },
}
SECTION = "# One\n<!-- figures: one -->\n<!-- end -->\n# Two\n<!-- figures: two -->\nkept\n<!-- end -->\n"


def test_a_result_is_put_between_its_markers_with_date_and_machine() -> None:
    page = render(SECTION, {"one": RESULT})
    assert "Measured 2026-01-02 03:04 UTC on 2 cores (Any), 4 GiB, python 3.11.7, prefect 3.9.1." in page
    assert "| `wall_ratio` | 8.46 |\n| `runs` | 100 |\n| `rate` | 2,266 |" in page
    assert "# Two\n<!-- figures: two -->\nkept\n<!-- end -->" in page


def test_a_figure_that_is_only_a_bound_says_so() -> None:
    bound = {**RESULT, "context": {**RESULT["context"], "at most": {"wall_ratio": "kueue was given up after 300 s"}}}
    assert "| `wall_ratio` | ≤ 8.46 |\n| `runs` | 100 |" in render(SECTION, {"one": bound})


def test_rendering_twice_changes_nothing() -> None:
    once = render(SECTION, {"one": RESULT})
    assert render(once, {"one": RESULT}) == once


def test_the_page_has_one_section_for_every_benchmark_and_no_other() -> None:
    published = {
        path.stem for path in PAGE.parent.glob("*.py") if re.search(rf'publish\(\s*"{path.stem}"', path.read_text())
    }
    parts = {name for name in published if name.partition("_")[0] in published - {name}}
    named = [match["name"] for match in BLOCK.finditer(PAGE.read_text())]
    assert sorted(named) == sorted(published - parts)
    assert {"dispatch", "preempt", "cycle", "admit", "cache"} <= set(named)
