"""The flows that the benchmarks run: a victim that trains in steps, an urgent one, and one that only holds devices."""

import json
import os
import time
from pathlib import Path
from typing import Any

from prefect import flow

from dsec_blocks import current_gang, run


def _append(path: Path, **fields: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"at": time.time(), **fields}) + "\n")


def train(directory: str, step_seconds: float, snapshot_seconds: float) -> None:
    """Step for ever; every rank logs each step and answers an eviction, unless it was told to ignore it."""
    folder = Path(directory)
    log = folder / f"steps-{run.rank}.jsonl"
    checkpoints = run.checkpoints(folder / "store", every="10h")
    state = checkpoints.restore({"step": 0})
    ignored = False
    _append(folder / "ranks.jsonl", pid=os.getpid(), rank=run.rank, attempt=os.environ["DSEC_ATTEMPT"])
    checkpoints.save(int(state["step"]), state)  # the first commit ends the minimum run; none follows by itself

    @run.on_evict
    def snapshot(step: int) -> None:
        began = time.time()
        time.sleep(snapshot_seconds)
        checkpoints.save(step, {"step": step})
        _append(folder / f"snapshots-{run.rank}.jsonl", seconds=time.time() - began, step=step)

    for step in run.steps(10**9, start=int(state["step"])):
        _append(log, step=step, attempt=os.environ["DSEC_ATTEMPT"])
        ignored = ignored or (folder / "ignore").exists()
        while ignored:  # a victim that has stopped listening
            time.sleep(step_seconds)
        time.sleep(step_seconds)


@flow
def victim(directory: str, step_seconds: float = 0.02, snapshot_seconds: float = 0.2) -> None:
    """A low-priority gang of two ranks."""
    current_gang().run(train, directory, step_seconds, snapshot_seconds)


@flow
def urgent(directory: str) -> None:
    """What the victim leaves for."""
    first_instruction = time.time()
    with (Path(directory) / "urgent.jsonl").open("a") as file:
        file.write(json.dumps({"at": first_instruction}) + "\n")


@flow
def hold(seconds: float) -> None:
    """Devices held for a while."""
    time.sleep(seconds)
