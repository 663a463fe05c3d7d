"""Small parts of the replays whose figures are kept in `benchmarks/expected/`, so that a change shows as a difference.

`python -m benchmarks.expectations` writes them anew (after a change that is meant to change them); a slow test compares
them. Durations, wall time and the machine play no part in these figures: everything is in virtual time.
"""

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks import article, philly
from dsec_workers.simulation import measures
from dsec_workers.simulation.policies import equal_teams

FOLDER = Path(__file__).parent / "expected"
PHILLY_JOBS, PHILLY_NODES = 1000, 16
"""So few nodes that the first thousand jobs wait."""
ARTICLE_SEED = 1
KEPT = ("finished", "mean_wait", "p95_wait", "mean_jct", "utilisation", "evictions", "lost_device_hours")
TOLERANCE = 0.001
"""Of the value: what a processor may make of sums of floats, and no more."""


def philly_part() -> dict[str, dict[str, float]]:
    """Policy → figures of the first jobs of Philly on a small cluster. Needs the trace (`DSEC_DATA`)."""
    found = {}
    for name in philly.policies():
        row = philly.play(
            (PHILLY_NODES, name), jobs=PHILLY_JOBS, tick=philly.TICK_SECONDS, number=0, ended=[0]
        )  # fmt: skip
        found[name] = {figure: round(row[figure], 6) for figure in KEPT}
    return found


def article_part() -> dict[str, dict[str, float]]:
    """Policy → figures of the article's submission test with one seed."""
    found = {}
    for name in ("dsec", article.SHARED, "fifo"):
        recording, _ = article.play(
            article.submission(ARTICLE_SEED), name, equal_teams(article.TEAMS, article.DEVICES)
        )  # fmt: skip
        figures = {figure: measures.figures(recording)[figure] for figure in KEPT}
        figures["p99_delay"] = float(np.percentile(list(article.delays(recording).values()), 99))
        found[name] = {figure: round(value, 6) for figure, value in figures.items()}
    return found


def differences(expected: dict[str, dict[str, float]], found: dict[str, dict[str, float]]) -> list[str]:
    """Figures that are off by more than the tolerance, one line each."""
    said = [f"{name}: not expected" for name in found.keys() - expected.keys()]
    for name, figures in expected.items():
        for figure, value in figures.items():
            is_ = found.get(name, {}).get(figure)
            if is_ is None or abs(is_ - value) > TOLERANCE * max(1.0, abs(value)):
                said.append(f"{name}, {figure}: expected {value:,}, found {is_ if is_ is None else f'{is_:,}'}")
    return said


def read(name: str) -> dict[str, dict[str, float]]:
    """The figures that are kept under that name."""
    kept: dict[str, dict[str, float]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    return kept


def write(name: str, what: str, runs: dict[str, dict[str, float]]) -> None:
    """Keep these figures under that name."""
    text = json.dumps({"what": what, "tolerance": TOLERANCE, "runs": runs}, indent=2, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Write the files anew, or those that are named."""
    names = sys.argv[1:] or ("philly", "article")
    if "philly" in names:
        what = f"first {PHILLY_JOBS:,} jobs of Philly on {PHILLY_NODES} nodes of 8 GPUs, seconds; benchmarks/philly.py"
        write("philly", what, philly_part())
    if "article" in names:
        write("article", f"submission test, seed {ARTICLE_SEED}, seconds; benchmarks/article.py", article_part())


if __name__ == "__main__":
    main()
