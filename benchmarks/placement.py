"""Placement against fragmentation gradient descent, by its authors' published experiment.

    python -m benchmarks.placement [--trace LIST.csv] [--lists default,cpu200] [--seeds 2]

Random, BestFit and FGD as in the paper, and the scheduler's own score, on the same arrivals (benchmarks/packing). The
values are the cards allocated, in % of all, when the requests that have arrived come to 80, 90, 100 and 130 % of them;
`fragmentation` is the free card that a pod drawn from the list could not use, in % of all. Without the public trace
in $DSEC_DATA there is nothing to measure; with `--trace` any list of the same columns is placed on the same nodes.

It takes some minutes. What is finished is kept beside the results, so that an interrupted call goes on where it was;
a change of the code or of the list makes it start anew.
"""

import argparse
import csv
import hashlib
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.packing.methods import BestFit, Fragmentation, Gradient, Method, Ours, Place, Random
from benchmarks.packing.pods import LISTS, NODES, Cluster, arrivals, frequencies, read_cluster, read_pods
from benchmarks.report import RESULTS, publish
from dsec_workers.scheduling import fragmentation, scoreboard, shapes
from dsec_workers.scheduling.fragmentation import Headroom
from dsec_workers.scheduling.shapes import WHOLE, MemberShape

SEEDS = range(42, 52)
MARKS = (80, 90, 100, 130)
METHODS = ("random", "bestfit", "fgd", "ours")
PUBLISHED = "analysis_allo_discrete.csv"
PUBLISHED_METHOD = {"random": "01-Random", "bestfit": "05-BestFit", "fgd": "06-FGD"}
NOISE = 0.005
"""Points within which two methods count as equal."""
LOSS = 0.05
"""Points behind FGD from which on a list is lost at a mark; the published arrivals are others, so no less."""

Marks = tuple[float, ...]
"""A value at each of MARKS."""


@dataclass(frozen=True)
class Run:
    """One method on one list and seed."""

    list: str
    seed: int
    method: str
    allocated: Marks
    fragmented: Marks
    dropped: int


class Kept:
    """Finished runs in a file of lines, each with a digest of the code and the list that they came from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        code = [Path(__file__), *sorted((Path(__file__).parent / "packing").glob("*.py"))]
        code += [Path(module.__file__ or "") for module in (fragmentation, scoreboard, shapes)]
        self.code = b"".join(source.read_bytes() for source in code)
        self.lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def runs(self, name: str, path: Path, seed: int) -> list[Run]:
        """The four runs of a list and a seed, none when they are not there or came from something else."""
        digest = self._digest(path)
        found = [entry["run"] for entry in map(json.loads, self.lines) if entry["from"] == digest]
        return [
            Run(**{**run, "allocated": tuple(run["allocated"]), "fragmented": tuple(run["fragmented"])})
            for run in found
            if run["list"] == name and run["seed"] == seed
        ]

    def add(self, path: Path, runs: Sequence[Run]) -> None:
        """Keep these."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"from": self._digest(path), "run": asdict(run)}) for run in runs]
        with self.path.open("a", encoding="utf-8") as text:
            text.write("".join(line + "\n" for line in lines))

    def _digest(self, path: Path) -> str:
        return hashlib.sha256(self.code + path.read_bytes()).hexdigest()[:16]


def data_folder() -> Path:
    """Where the public data is."""
    return Path(os.environ.get("DSEC_DATA") or Path(__file__).parents[2] / "shared" / "data")


def pod_lists(data: Path) -> dict[str, Path]:
    """The lists of the trace by their short names."""
    found = sorted((data / "alibaba-gpu-v2023").glob(LISTS))
    return {path.stem.removeprefix("openb_pod_list_"): path for path in found}


def place_list(name: str, path: Path, nodes: Path, seed: int, methods: Sequence[str] = METHODS) -> list[Run]:
    """Every method on the same arrivals."""
    pods = read_pods(path)
    capacity = read_cluster(nodes).capacity
    sequence = arrivals(pods, capacity, seed)
    return [_place(name, seed, method, read_cluster(nodes).in_order_of(seed), pods, sequence) for method in methods]


def _method(name: str, cluster: Cluster, pods: tuple[MemberShape, ...], seed: int) -> Method:
    if name == "random":
        return Random(cluster, cluster.room, seed)
    if name == "bestfit":
        return BestFit(cluster, cluster.room)
    if name == "fgd":
        return Gradient(cluster, cluster.room, frequencies(pods))
    return Ours(cluster, cluster.room)


def _place(
    name: str, seed: int, method: str, cluster: Cluster, pods: tuple[MemberShape, ...], sequence: list[MemberShape]
) -> Run:
    chooser, measure = _method(method, cluster, pods, seed), Fragmentation(cluster, frequencies(pods))
    room, capacity = cluster.room, cluster.capacity
    asked = allocated = dropped = 0
    values: list[float] = []
    fragments: list[float] = []
    for pod in sequence:
        place = chooser.choose(pod)
        asked += pod.thousandths
        if place is None:
            dropped += 1
        else:
            take(room, pod, place)
            allocated += pod.thousandths
            chooser.placed(pod, place)
        while len(values) < len(MARKS) - 1 and asked * 100 >= MARKS[len(values)] * capacity:
            values.append(100 * allocated / capacity)
            fragments.append(100 * float(measure.of(room).sum()) / capacity)
    while len(values) < len(MARKS):
        values.append(100 * allocated / capacity)
        fragments.append(100 * float(measure.of(room).sum()) / capacity)
    return Run(name, seed, method, tuple(values), tuple(fragments), dropped)


def take(room: Headroom, pod: MemberShape, place: Place) -> None:
    """Subtract the pod from its node; that it fits is checked again here, whatever the method believed."""
    row, card = place
    room.cpu_milli[row] -= pod.cpu_milli
    room.memory_mib[row] -= pod.memory_mib
    if card >= 0:
        room.cards[row, card] -= pod.share
    elif pod.devices:
        full = np.flatnonzero(room.cards[row] == WHOLE)[: pod.devices]
        if len(full) < pod.devices:
            raise AssertionError(f"{pod} was placed on node {row}, which has {len(full)} whole cards")
        room.cards[row, full] = 0
    if room.cards[row].min() < 0 or room.cpu_milli[row] < 0 or room.memory_mib[row] < 0:
        raise AssertionError(f"{pod} was placed on node {row}, which has no room for it")


def published(data: Path) -> dict[tuple[str, str], Marks]:
    """(list, method) → the published means over seeds at MARKS."""
    found: dict[tuple[str, str], list[Marks]] = defaultdict(list)
    path = data / "fgd-expected" / PUBLISHED
    if path.exists():
        with path.open(encoding="utf-8", newline="") as text:
            for row in csv.DictReader(text):
                key = (row["workload"].removeprefix("openb_pod_list_"), row["sc_policy"])
                found[key].append(tuple(float(row[str(mark)]) for mark in MARKS))
    return {key: means(values) for key, values in found.items()}


def means(values: Sequence[Marks]) -> Marks:
    """Mark by mark."""
    return tuple(statistics.fmean(column) for column in zip(*values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare placement with FGD; write benchmarks/results/placement.json.")
    parser.add_argument("--trace", type=Path, default=os.environ.get("TRACE"), help="another pod list of the format")
    parser.add_argument("--lists", default="", help="some of the trace's lists, separated by commas")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    options = parser.parse_args()
    data = data_folder()
    nodes, lists = data / "alibaba-gpu-v2023" / NODES, pod_lists(data)
    if not nodes.exists():
        sys.exit(f"no {NODES} under {data}; point DSEC_DATA to the folder that holds alibaba-gpu-v2023")
    if options.trace:
        lists = {Path(options.trace).stem.removeprefix("openb_pod_list_"): Path(options.trace)}
    elif options.lists:
        lists = {name: lists[name] for name in options.lists.split(",")}
    seeds = list(SEEDS)[: options.seeds]
    kept = Kept(RESULTS / "placement.parts.jsonl")
    wanted = [(name, path, seed) for seed in seeds for name, path in lists.items()]
    runs = [run for name, path, seed in wanted for run in kept.runs(name, path, seed)]
    missing = [part for part in wanted if not kept.runs(*part)]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes below share the cores already
    with Progress() as progress, ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        task = progress.add_task("placement", total=len(wanted), completed=len(wanted) - len(missing))
        jobs = {pool.submit(place_list, name, path, nodes, seed): path for name, path, seed in missing}
        for job in as_completed(jobs):
            runs.extend(job.result())
            kept.add(jobs[job], job.result())
            progress.advance(task)
    measured = summarise(runs)
    figures, rows = judge(measured, published(data))
    publish(
        "placement",
        figures,
        seeds=seeds,
        aims={"default_100": "> 95.23", "worst_gap_to_fgd": "≤ 0.05", "random_100": "86.30 ± 0.3",
              "bestfit_100": "92.86 ± 0.3", "fgd_100": "95.23 ± 0.5"},
        units={name: "points" if name.startswith("worst") else "%" for name in figures if not name.startswith("lists")},
        context={"tie_break": "of scores that are equal the first node in the seed's random order",
                 "allocated": {f"{n}/{m}": [round(v, 3) for v in marks[0]] for (n, m), marks in measured.items()},
                 "fragmented": {f"{n}/{m}": [round(v, 3) for v in marks[1]] for (n, m), marks in measured.items()}},
        rows=rows,
    )  # fmt: skip


def summarise(runs: Sequence[Run]) -> dict[tuple[str, str], tuple[Marks, Marks]]:
    """(list, method) → mean allocation and mean fragmentation at MARKS."""
    grouped: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.list, run.method].append(run)
    return {
        key: (means([run.allocated for run in group]), means([run.fragmented for run in group]))
        for key, group in sorted(grouped.items())
    }


def judge(
    measured: Mapping[tuple[str, str], tuple[Marks, Marks]], known: Mapping[tuple[str, str], Marks]
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """The figures, and a row for each list: ours, FGD here, FGD published, and the gap to the better of these."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    gaps: list[float] = []
    paired: list[float] = []
    ahead = 0
    for name in sorted({name for name, _ in measured}):
        ours, ours_frag = measured[name, "ours"]
        fgd, fgd_frag = measured[name, "fgd"]
        best = tuple(map(max, fgd, known.get((name, PUBLISHED_METHOD["fgd"]), fgd)))
        gap = max(b - o for b, o in zip(best, ours, strict=True))
        gaps.append(gap)
        paired.append(max(f - o for f, o in zip(fgd, ours, strict=True)))
        ahead += ours[2] > best[2] + NOISE and gap <= LOSS
        theirs = known.get((name, PUBLISHED_METHOD["fgd"]))
        rows.append({
            "list": name,
            "ours 80/90/100/130": _text(ours),
            "FGD": _text(fgd),
            "FGD published": _text(theirs) if theirs else "",
            "gap": round(gap, 3),
            "BestFit @100": round(measured[name, "bestfit"][0][2], 2),
            "Random @100": round(measured[name, "random"][0][2], 2),
            "fragmented @100 ours": round(ours_frag[2], 2),
            "FGD ": round(fgd_frag[2], 2),
        })  # fmt: skip
    if ("default", "ours") in measured:
        for method, figure in (("ours", "default_100"), ("random", "random_100"), ("bestfit", "bestfit_100"),
                               ("fgd", "fgd_100")):  # fmt: skip
            figures[figure] = round(measured["default", method][0][2], 3)
    figures |= {
        "worst_gap_to_fgd": round(max(gaps), 3),
        "worst_gap_to_fgd_same_arrivals": round(max(paired), 3),
        "lists_ahead_of_fgd": ahead,
        "lists": len(gaps),
    }
    return figures, rows


def _text(marks: Marks) -> str:
    return " ".join(f"{value:.2f}" for value in marks)


if __name__ == "__main__":
    main()
