"""How fast a bundle gets from an S3 server to the node's disk, verified: against boto3 at its best, and the limits.

Everything runs against one SeaweedFS on loopback, plain and through a proxy that makes it a far store (48 MB/s for
each connection, 20 ms before each answer). The contenders take turns within each round. A ratio is the median of the
rounds' own ratios: a machine that is slow for a minute is so for all contenders of a round.

    DSEC_BENCH_MIB=512 DSEC_BENCH_ROUNDS=3 python -m benchmarks.cache_transfer     (the default: 2048 MiB, 11 rounds)
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.object_store import ObjectStore, object_store
from benchmarks.report import publish
from dsec_blocks.cache.cluster_level import ClusterLevel, Through
from dsec_blocks.cache.origins.s3 import S3Origin
from dsec_blocks.cache.transfer import fetch
from dsec_blocks.cache.transfer.sizing import JOURNAL_BYTES
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger

MIB = 2**20
SIZE_MIB = int(os.environ.get("DSEC_BENCH_MIB", "2048"))
ROUNDS = int(os.environ.get("DSEC_BENCH_ROUNDS", "11"))
FILES = 4
MEMORY_BYTES = 64 * MIB
LATENCY_SECONDS, BYTES_PER_SECOND = 0.020, 48_000_000
NEAR_CONNECTIONS, FAR_CONNECTIONS = (4,), (16, 32)
"""Of the raw ranges: what our own rules may choose; the best of them is the limit."""
BOTO3_SWEEP = [
    {"part_mib": part, "threads": threads, "files_at_once": at_once}
    for part in (8, 32)
    for threads, at_once in ((10, 1), (4, 4), (8, 4))
]
AIMS = {
    "transfer_vs_boto3_best_verified": "≥ 1.1",
    "transfer_vs_write_limit": "≥ 0.9",
    "shaped_vs_connection_limit": "≥ 0.9",
    "origin_bytes_ratio": "≤ 1.01",
    "resume_refetched_parts": "≤ the ranges in flight",
    "peak_rss_above_start_mib": f"≤ {2 * MEMORY_BYTES // MIB} (twice the setting)",
}


@dataclass
class Bench:
    """The server, the bundle on it, and what was measured so far."""

    store: ObjectStore
    work: Path
    uri: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, where: str, endpoint: str, who: str, **options: Any) -> dict[str, float]:
        """One contender, once."""
        into = self.work / "into"
        shutil.rmtree(into, ignore_errors=True)
        os.sync()
        task = {
            "who": who, "endpoint": endpoint, "uri": self.uri, "into": str(into), "memory_bytes": MEMORY_BYTES,
            "page_cache_mib": SIZE_MIB,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.transfers", json.dumps(task | options)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{who} {options}: {done.stderr[-1500:]}")
        figures: dict[str, float] = json.loads(done.stdout)
        shown = " ".join(f"{name}={value}" for name, value in options.items())
        print(
            f"  {where:7} {who:14} {shown:45} {figures['seconds']:6.2f} s  cpu {figures['cpu_seconds']:5.2f} s",
            flush=True,
        )
        kept = ("seconds", "cpu_seconds", "rss_mib", "rss_before_mib")
        self.rows.append({"where": where, "who": who, "how": shown, **{name: figures[name] for name in kept}})
        return figures

    def rounds(self, where: str, endpoint: str, raw_connections: tuple[int, ...]) -> dict[str, list[float]]:
        """boto3 swept once, then the best of it against us and the limits, taking turns."""
        sweep = [(self.run(where, endpoint, "boto3", **how)["seconds"], how) for how in BOTO3_SWEEP]
        best = [how for _, how in sorted(sweep, key=lambda pair: pair[0])[:2]]
        seconds: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            print(f"{where}: round {number + 1} of {ROUNDS}", flush=True)
            turns: list[tuple[str, dict[str, Any]]] = [("dsec", {})]
            turns += [("raw", {"connections": count, "part_mib": 32}) for count in raw_connections]
            turns += [("boto3", how) for how in best]
            if where == "shaped":
                turns.append(("unwritten", {"connections": max(raw_connections), "part_mib": 32}))
            for who, how in turns[number % len(turns) :] + turns[: number % len(turns)]:
                seconds.setdefault(f"{who} {json.dumps(how)}", []).append(
                    self.run(where, endpoint, who, **how)["seconds"]
                )
        return seconds


def near_and_far(bench: Bench) -> dict[str, float]:
    """The comparisons."""
    plain = bench.rounds("plain", bench.store.endpoint_url, NEAR_CONNECTIONS)
    with proxy(bench.store, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND) as (endpoint, _):
        shaped = bench.rounds("shaped", endpoint, FAR_CONNECTIONS)
    return {
        "transfer_vs_boto3_best_verified": _against("boto3", plain),
        "transfer_vs_write_limit": _against("raw", plain),
        "shaped_vs_connection_limit": _against("raw", shaped),
        "shaped_vs_boto3_best_verified": _against("boto3", shaped),
        "shaped_vs_unwritten": _against("unwritten", shaped),
        "transfer_s": median(_ours(plain)),
        "shaped_s": median(_ours(shaped)),
        "shaped_nominal_limit_s": SIZE_MIB * MIB / (max(FAR_CONNECTIONS) * BYTES_PER_SECOND),
        "peak_rss_mib": max(row["rss_mib"] for row in bench.rows if row["who"] == "dsec"),
        "peak_rss_above_start_mib": max(
            row["rss_mib"] - row["rss_before_mib"] for row in bench.rows if row["who"] == "dsec"
        ),
    }


def resumed(bench: Bench) -> dict[str, float]:
    """Kill a fetch at about half, go on, and count what was fetched twice."""
    into = bench.work / "into"
    shutil.rmtree(into, ignore_errors=True)
    with proxy(bench.store, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND) as (endpoint, _):
        task = {
            "who": "dsec", "endpoint": endpoint, "uri": bench.uri, "into": str(into), "memory_bytes": MEMORY_BYTES,
            "connections": 8, "page_cache_mib": 0,
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.transfers", json.dumps(task)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while _arrived(into) < SIZE_MIB * MIB // 2 and child.poll() is None:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        before = _arrived(into)
        done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    size = sum(path.stat().st_size for path in into.iterdir() if path.name.startswith("shard"))
    again = before + done["fetched_bytes"] - size
    return {"resume_refetched_parts": max(0.0, again / JOURNAL_BYTES), "resume_ranges_in_flight": 8}


def nodes(bench: Bench, count: int = 8) -> dict[str, float]:
    """Bytes that the origin sends when `count` nodes start at once, by the size of the bundle."""
    clock = SystemClock()
    level_bucket = bench.store.bucket("cluster-level")
    with proxy(bench.store, latency_seconds=0.0, bytes_per_second=0) as (endpoint, sent):

        def node(number: int) -> int:
            ledger = Ledger.open(f"sqlite:///{bench.work}/ledger.db", clock=clock)
            level = ClusterLevel(level_bucket, "", ledger=ledger, clock=clock, holder=f"node-{number}")
            through = Through(level, S3Origin(bench.store.at(endpoint), clock=clock))
            items = through.list(bench.uri.replace("/bundle", "/small"))
            got = fetch(items, origin=through, staging=bench.work / f"node-{number}")
            return sum(one.size_bytes for one in got)

        Ledger.open(f"sqlite:///{bench.work}/ledger.db", clock=clock).close()
        with ThreadPoolExecutor(count) as pool:
            sizes = list(pool.map(node, range(count)))
        return {"origin_bytes_ratio": sent() / sizes[0]}


def measure() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """All figures of this benchmark, and every single run."""
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        (work / "s3").mkdir()
        with object_store(work / "s3") as store:
            bucket = store.bucket("origin")
            print(f"putting {SIZE_MIB} MiB", flush=True)
            _put(bucket, "bundle", work, SIZE_MIB)
            _put(bucket, "small", work, max(32, SIZE_MIB // 8))
            bench = Bench(store=store, work=work, uri="s3://origin/bundle")
            figures = nodes(bench) | resumed(bench) | near_and_far(bench)
            return figures, bench.rows


@contextmanager
def proxy(store: ObjectStore, *, latency_seconds: float, bytes_per_second: int) -> Iterator[tuple[str, Any]]:
    """The server behind a proxy: its address, and a function that tells the bytes sent so far."""
    port = store.endpoint_url.rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.shaping_proxy", port, str(latency_seconds), str(bytes_per_second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        endpoint = f"http://127.0.0.1:{process.stdout.readline().strip()}"

        def sent() -> int:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("count\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        try:
            yield endpoint, sent
        finally:
            process.kill()


def _against(who: str, seconds: dict[str, list[float]]) -> float:
    """The median of a contender's seconds ÷ ours in the same round, for whichever way of asking it is the smallest."""
    ours = _ours(seconds)
    return min(
        median(theirs / mine for theirs, mine in zip(values, ours, strict=True))
        for name, values in seconds.items()
        if name.startswith(f"{who} ")
    )


def _ours(seconds: dict[str, list[float]]) -> list[float]:
    return next(values for name, values in seconds.items() if name.startswith("dsec "))


def _put(bucket: Any, prefix: str, work: Path, size_mib: int) -> None:
    path = work / "shard"
    for number in range(FILES):
        with path.open("wb") as file:
            for _ in range(size_mib // FILES // 8):
                file.write(os.urandom(8 * MIB))
        bucket.put(f"{prefix}/shard-{number}.safetensors", path, at="bench.put")
    bucket.put(f"{prefix}/shard-config.json", b"{}" * 500, at="bench.put.small")
    path.unlink()


def _arrived(into: Path) -> int:
    try:
        return int.from_bytes((into / "arrived").read_bytes()[:8], "little")
    except FileNotFoundError:
        return 0


def main() -> None:
    figures, rows = measure()
    context = {"size_mib": SIZE_MIB, "rounds": ROUNDS, "memory_bytes": MEMORY_BYTES}
    publish("cache_transfer-part", figures, aims=AIMS, context=context, rows=rows)


if __name__ == "__main__":
    main()
