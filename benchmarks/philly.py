"""Philly replayed on 58, 67 and 90 eight-GPU nodes: `plan()` beside FIFO, EASY, Kueue's way and Tiresias' way.

Nobody is told a duration: estimates come from jobs that have ended. Every policy that interrupts pays the same for
it. Every virtual cluster is a team entitled to an equal part. What happens within a minute is decided at its end, for
every policy alike (`--tick`). wait = completion time − duration.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.report import publish
from dsec_workers.scheduling import Policy
from dsec_workers.simulation import measures
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.policies import BASELINES, baseline, equal_teams, production
from dsec_workers.simulation.readers import philly
from dsec_workers.simulation.replay import Replay
from dsec_workers.simulation.schedulers import Scheduler

NODES = (58, 67, 90)
NON_SHARED = ("fifo", "easy", "kueue-like")
LAS = ("tiresias-like", "tiresias-like-our-levels")
"""Least attained service with the published limits, and with the levels of our own time sharing."""
OFF, ON = "dsec", "dsec, time sharing"
OVERHEADS = Overheads(checkpoint_seconds=10.0, restart_seconds=30.0)
TICK_SECONDS = 60.0
LARGEST = measures.SIZES[-1][0]

Scenario = tuple[int, str]


def data() -> Path:
    """Where public data lies; the process ends with a clear line when it does not."""
    root = Path(os.environ.get("DSEC_DATA", Path(__file__).parents[2] / "shared" / "data"))
    trace = root / "philly" / "philly.csv"
    if not trace.exists():
        sys.exit(f"the Philly trace is not at {trace}; set DSEC_DATA to the folder that holds philly/philly.csv")
    return trace


def time_sharing() -> Policy | None:
    """The default policy with time sharing on; None where this DSec has none."""
    if "time_sharing" not in {field.name for field in dataclasses.fields(Policy)}:
        return None
    return dataclasses.replace(Policy(), time_sharing=True)  # type: ignore[call-arg, unused-ignore]


def policies() -> list[str]:
    """Everything that is compared."""
    return [*BASELINES, OFF, *([ON] if time_sharing() else [])]


def play(
    scenario: Scenario, *, jobs: int | None, tick: float, number: int, ended: "SynchronizedArray[int] | list[int]"
) -> dict[str, Any]:
    """One trace under one policy on one cluster: its row, sizes and teams."""
    count, name = scenario
    nodes = parse_cluster(f"{count}x8")
    trace = philly.read(data(), limit=jobs)
    teams = equal_teams([job.team for job in trace.jobs], count * 8)
    scheduler: Scheduler
    if name in (OFF, ON):
        policy = Policy() if name == OFF else time_sharing()
        assert policy is not None
        # Estimates for people cost time and decide nothing.
        scheduler = production(
            nodes, teams, dataclasses.replace(policy, eta_positions=0), overheads=OVERHEADS, name=name
        )
    else:
        scheduler = baseline(name, teams)
    replay = Replay(trace, nodes, scheduler, overheads=OVERHEADS, tick=tick, stopwatch=time.perf_counter)
    began = time.perf_counter()
    for step, _ in enumerate(replay.steps()):
        if step % 50 == 0:
            ended[number] = replay.ended
    ended[number] = replay.ended
    recording = replay.recording
    return {
        "nodes": count,
        "policy": name,
        "wall_seconds": time.perf_counter() - began,
        **measures.figures(recording),
        "by_size": measures.by_size(recording),
        "by_team": measures.by_team(recording),
    }


def summary(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The figures, each the worst of the sizes that were run with everything it compares."""
    found: dict[str, list[float]] = {}
    for count in {row["nodes"] for row in results}:
        rows = {row["policy"]: row for row in results if row["nodes"] == count}
        ours, shared = rows.get(OFF), rows.get(ON)
        others = [rows[name] for name in NON_SHARED if name in rows]
        if ours and len(others) == len(NON_SHARED):
            for time_, figure in (
                ("mean_wait", "mean_wait_vs_best_nonshared"),
                ("mean_jct", "mean_jct_vs_best_nonshared"),
            ):
                best = min(row[time_] for row in others)
                found.setdefault(figure, []).append(ours[time_] / best)
        if shared and all(name in rows for name in LAS):
            las = min((rows[name] for name in LAS), key=lambda row: float(row["mean_jct"]))
            found.setdefault("mean_jct_vs_las", []).append(shared["mean_jct"] / las["mean_jct"])
            found.setdefault("lost_work_vs_las", []).append(shared["lost_device_hours"] / las["lost_device_hours"])
        if "easy" in rows and LARGEST in rows["easy"]["by_size"]:
            for row in (ours, shared):
                if row:
                    longest = row["by_size"][LARGEST]["max_wait"] / rows["easy"]["by_size"][LARGEST]["max_wait"]
                    found.setdefault("largest_max_wait_vs_easy", []).append(longest)
    return {figure: max(values) for figure, values in found.items()}


def table(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One readable row a scenario."""
    shown = []
    for row in results:
        shown.append(
            {
                "nodes": row["nodes"],
                "policy": row["policy"],
                "mean wait s": row["mean_wait"],
                "p95 wait s": row["p95_wait"],
                "mean JCT s": row["mean_jct"],
                f"mean wait {LARGEST} s": row["by_size"].get(LARGEST, {}).get("mean_wait", 0.0),
                f"max wait {LARGEST} s": row["by_size"].get(LARGEST, {}).get("max_wait", 0.0),
                "util": row["utilisation"],
                "fairness": row["fairness"],
                "evictions": row["evictions"],
                "lost device-h": row["lost_device_hours"],
                "wall s": row["wall_seconds"],
            }
        )
    return shown


def _run(job: tuple[Scenario, int | None, float, int]) -> dict[str, Any]:
    scenario, jobs, tick, number = job
    return play(scenario, jobs=jobs, tick=tick, number=number, ended=_ended)


_ended: Any = None


def _share(ended: Any) -> None:
    global _ended
    _ended = ended


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay Philly and write benchmarks/results/philly.json.")
    parser.add_argument("--jobs", type=int, help="only the first JOBS jobs, for a look")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="cluster sizes in nodes of eight GPUs")
    parser.add_argument("--policies", nargs="+", default=None, choices=policies(), help="only these")
    parser.add_argument("--tick", type=float, default=TICK_SECONDS, help="seconds of virtual time per decision")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--parts", type=Path, help="keep finished scenarios in this folder and do not run them again")
    options = parser.parse_args()
    data()
    names = options.policies or policies()
    if time_sharing() is None:
        Console(stderr=True).print("this DSec's policy has no time sharing: that row is left out")
    # The slow ones first, so that the processes end together.
    order = [OFF, ON, *LAS, "easy", "kueue-like", "fifo"]
    scenarios = [(count, name) for name in order if name in names for count in sorted(options.nodes)]
    results: list[dict[str, Any]] = []
    todo = []
    for scenario in scenarios:
        part = _part(options.parts, scenario, options)
        if part is not None and part.exists():
            results.append(json.loads(part.read_text(encoding="utf-8")))
        else:
            todo.append(scenario)
    total = len(philly.read(data(), limit=options.jobs).jobs)
    ended = multiprocessing.Array("q", max(1, len(todo)), lock=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars = [progress.add_task(f"{name} on {count}", total=total, start=False) for count, name in todo]
        with multiprocessing.get_context("fork").Pool(options.processes, _share, (ended,)) as pool:
            waiting = [
                pool.apply_async(_run, ((scenario, options.jobs, options.tick, number),))
                for number, scenario in enumerate(todo)
            ]
            done: set[int] = set()
            while len(done) < len(todo):
                time.sleep(0.5)
                for number, answer in enumerate(waiting):
                    if ended[number] and not progress.tasks[bars[number]].started:
                        progress.start_task(bars[number])
                    progress.update(bars[number], completed=ended[number])
                    if number not in done and answer.ready():
                        done.add(number)
                        row = answer.get()
                        results.append(row)
                        part = _part(options.parts, todo[number], options)
                        if part is not None:
                            part.parent.mkdir(parents=True, exist_ok=True)
                            part.write_text(json.dumps(row), encoding="utf-8")
    results.sort(key=lambda row: (row["nodes"], policies().index(row["policy"])))
    publish(
        "philly",
        summary(results),
        aims={
            "mean_wait_vs_best_nonshared": "< 1",
            "mean_jct_vs_best_nonshared": "< 1",
            "mean_jct_vs_las": "≤ 1",
            "lost_work_vs_las": "≤ 1",
            "largest_max_wait_vs_easy": "≤ 1",
        },
        context={
            "jobs": total,
            "tick_seconds": options.tick,
            "overheads": dataclasses.asdict(OVERHEADS),
            "scenarios": results,
        },
        rows=table(results),
    )


def _part(folder: Path | None, scenario: Scenario, options: argparse.Namespace) -> Path | None:
    if folder is None:
        return None
    count, name = scenario
    return folder / f"{count}-{name.replace(', ', '-').replace(' ', '-')}-{options.jobs or 'all'}-{options.tick:g}.json"


if __name__ == "__main__":
    main()
