"""Part (a) of the cache benchmark: which eviction policy has the most models there when they are started.

    python -m benchmarks.cache_eviction

Every policy of `dsec_blocks.cache.eviction` over the model-start trace of `benchmarks.model_starts` (20 seeds, fixed
before any policy was tuned), with paired 95 % intervals against the best other; then over public traces from
DSEC_DATA: libCacheSim's own golden miss counts must come out exactly, and a CDN trace is replayed for comparison.
The whole bundle is the unit: a start is warm when nothing of its model has to be fetched.
"""

import argparse
import json
import lzma
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import model_starts
from benchmarks.report import publish
from dsec_blocks.cache.eviction import DEFAULT_POLICY, POLICIES, EvictionPolicy, Request, Tally, replay
from dsec_blocks.cache.eviction.s3fifo import S3Fifo
from dsec_blocks.cache.eviction.scored import FrequencySize

DATA = Path(os.environ.get("DSEC_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
AIMS = {
    "warm_starts_vs_best_other": "≥ 1",
    "byte_hit_vs_best_other": "≥ 0.92",
    "golden_mismatches": "0",
}
Make = Callable[[int], EvictionPolicy]
COMPARED: dict[str, Make] = {
    **POLICIES,
    "s3-fifo as published": partial(S3Fifo, price_exponent=0.0),
    "freq-size with aging": partial(FrequencySize, ages=True),
}
"""The selectable policies, and two variants so that the default is held against the strongest of each kind."""
GOLDEN: dict[str, Make] = {
    "LRU": POLICIES["lru"],
    "FIFO": POLICIES["fifo"],
    "S3FIFO": partial(S3Fifo, price_exponent=0.0, refuses_large=True),
}
CDN_SHARES = (0.01, 0.05, 0.10, 0.25)
T_95 = 2.093
"""Student's t for 19 degrees of freedom, two-sided 95 %."""


def model_start_tallies(seeds: Sequence[int], progress: Progress) -> dict[tuple[str, str], list[Tally]]:
    """(size, policy) → one tally a seed."""
    found: dict[tuple[str, str], list[Tally]] = {}
    task = progress.add_task("model starts", total=len(seeds) * len(COMPARED) * len(model_starts.CACHE_BYTES))
    for seed in seeds:
        trace = [
            Request(str(r.bundle), r.size_bytes, r.refetch_seconds, r.counts and r.is_start)
            for r in model_starts.requests(seed)
        ]
        for size, capacity_bytes in model_starts.CACHE_BYTES.items():
            for name, make in COMPARED.items():
                tally = replay(trace, make(capacity_bytes), capacity_bytes=capacity_bytes)
                found.setdefault((size, name), []).append(tally)
                progress.advance(task)
    return found


def judged(tallies: Mapping[tuple[str, str], list[Tally]]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The figures (the worse of both sizes), and a row per size and policy."""
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {"warm_starts": [], "byte_hit": []}
    for size in model_starts.CACHE_BYTES:
        warm = {name: np.array([t.hit_ratio for t in tallies[size, name]]) for name in COMPARED}
        bytes_hit = {name: np.array([t.byte_hit_ratio for t in tallies[size, name]]) for name in COMPARED}
        for what, values in (("warm_starts", warm), ("byte_hit", bytes_hit)):
            best = max((name for name in COMPARED if name != DEFAULT_POLICY), key=lambda name: values[name].mean())
            ratio = float(values[DEFAULT_POLICY].mean() / values[best].mean())
            ratios[what].append(ratio)
            figures[f"{what}_vs_best_other_{size.lower()}"] = ratio
            low, high = paired(values[DEFAULT_POLICY] - values[best])
            figures[f"{what}_minus_best_other_{size.lower()}_low"] = low
            figures[f"{what}_minus_best_other_{size.lower()}_high"] = high
        for name in COMPARED:
            low, high = paired(warm[DEFAULT_POLICY] - warm[name])
            rows.append(
                {
                    "cache": size,
                    "policy": name,
                    "byte hit": round(float(bytes_hit[name].mean()), 3),
                    "warm starts": round(float(warm[name].mean()), 3),
                    "stall s": round(float(np.mean([t.mean_stall_seconds for t in tallies[size, name]])), 2),
                    "default's warm starts more by": "" if name == DEFAULT_POLICY else f"{low:+.3f} … {high:+.3f}",
                }
            )
    top = {f"{what}_vs_best_other": min(values) for what, values in ratios.items()}
    return {**top, **figures}, rows


def paired(differences: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of paired differences."""
    if len(differences) < 2:
        return float(differences[0]), float(differences[0])
    half = T_95 * float(differences.std(ddof=1)) / np.sqrt(len(differences))
    return float(differences.mean() - half), float(differences.mean() + half)


def golden(progress: Progress, data: Path = DATA) -> tuple[int, list[dict[str, Any]]]:
    """How many of libCacheSim's own miss counts do not come out, and a row per policy.

    Raises `FileNotFoundError` without the trace.
    """
    folder = data / "libcachesim"
    raw = (folder / "cloudPhysicsIO.oracleGeneral.bin").read_bytes()
    told = json.loads((folder / "golden_miss_counts.json").read_text())
    trace = [Request(str(key), size) for _, key, size, _ in struct.iter_unpack("<IQIq", raw)]
    task = progress.add_task("golden counts", total=len(GOLDEN) * len(told["cache_sizes_MiB"]))
    mismatches, rows = 0, []
    for name, make in GOLDEN.items():
        misses, wrong = [], 0
        wanted = told["algos"][name]
        for mib, count, size_bytes in zip(
            told["cache_sizes_MiB"], wanted["miss_cnt"], wanted["miss_byte"], strict=True
        ):
            tally = replay(trace, make(mib * 2**20), capacity_bytes=mib * 2**20)
            misses.append(tally.misses)
            missed_bytes = tally.requested_bytes - tally.hit_bytes
            wrong += (tally.misses, missed_bytes) != (count, size_bytes)
            progress.advance(task)
        mismatches += wrong
        rows.append({"trace": "cloudPhysicsIO", "policy": name, "misses": misses, "wrong": wrong})
    return mismatches, rows


def cdn(progress: Progress, data: Path = DATA) -> list[dict[str, Any]]:
    """A row per cache size (share of the footprint) and policy over the AdaptSize CDN trace."""
    with lzma.open(data / "cdn-adaptsize" / "request.trace.xz", "rt") as lines:
        trace = [Request(key, int(size)) for _, key, size in (line.split() for line in lines)]
    footprint = sum({request.key: request.size_bytes for request in trace}.values())
    task = progress.add_task("CDN trace", total=len(CDN_SHARES) * len(COMPARED))
    rows = []
    for share in CDN_SHARES:
        for name, make in COMPARED.items():
            capacity_bytes = int(footprint * share)
            tally = replay(trace, make(capacity_bytes), capacity_bytes=capacity_bytes)
            rows.append(
                {
                    "trace": f"cdn-adaptsize, {share:.0%} of its footprint",
                    "policy": name,
                    "hits": round(tally.hit_ratio, 3),
                    "byte hit": round(tally.byte_hit_ratio, 3),
                }
            )
            progress.advance(task)
    return rows


def measure(seeds: Sequence[int] = model_starts.SEEDS) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """All of part (a): figures, and rows for people."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console()
    with Progress(*columns, console=console) as progress:
        figures, rows = judged(model_start_tallies(seeds, progress))
        try:
            mismatches, golden_rows = golden(progress)
            figures["golden_mismatches"] = float(mismatches)
            public: list[dict[str, Any]] = [*golden_rows, *cdn(progress)]
        except FileNotFoundError as error:
            console.print(f"the public traces are not there ({error.filename}): set DSEC_DATA; this part is left out")
            public = []
    for row in public:
        console.print("  ".join(f"{name}: {value}" for name, value in row.items()))
    return figures, rows


def main() -> None:
    """Measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    figures, rows = measure()
    publish("cache_eviction-part", figures, seeds=model_starts.SEEDS, aims=AIMS, rows=rows)


if __name__ == "__main__":
    main()
