"""A training flow as a user writes it, run by the end-to-end test in pods."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from prefect import flow

from dsec_blocks.gang import agree, current_gang, run


def loop(steps: int, store: str, notes: str) -> float:
    print(f"rank {run.rank} begins attempt {os.environ['DSEC_ATTEMPT']}", flush=True)
    checkpoint = run.checkpoints(store, every=5)
    state = checkpoint.restore({"loss": 100.0})

    @run.on_evict
    def snapshot(step: int) -> None:
        checkpoint.save(step, state)

    for step in run.steps(steps):
        state["loss"] = state["loss"] * 0.99 + agree(float(run.rank)) * 0.001
        with Path(notes, f"rank-{run.rank}").open("a") as file:
            file.write(f"{os.environ['DSEC_ATTEMPT']} {step} {state['loss']!r} {os.environ['CUDA_VISIBLE_DEVICES']}\n")
        time.sleep(0.05)
        if run.should_checkpoint():
            checkpoint.save(step + 1, state)
    print(f"rank {run.rank} has lost {state['loss']:.3f}")
    return float(state["loss"])


@flow
def train(steps: int, store: str, notes: str) -> None:
    Path(notes).mkdir(exist_ok=True)
    losses = list(current_gang().run(loop, steps, store, notes))
    Path(notes, "losses").write_text(repr(losses))


@flow
def urgent(notes: str) -> None:
    Path(notes, "urgent").write_text(os.environ["DSEC_RUN_ID"])


def until_told(store: str, notes: str, name: str) -> int:
    checkpoint = run.checkpoints(store, every=50)
    state = checkpoint.restore({"steps": 0})

    @run.on_evict
    def snapshot(step: int) -> None:
        checkpoint.save(step, state)

    for step in run.steps(10_000_000):
        if agree(Path(notes, f"stop-{name}").exists()):
            break
        state["steps"] += 1
        if run.rank == 0:
            with Path(notes, f"steps-{name}").open("a") as file:
                file.write(f"{step}\n")
        time.sleep(0.1)
        if run.should_checkpoint():
            checkpoint.save(step + 1, state)
    return int(state["steps"])


@flow
def open_ended(store: str, notes: str, name: str) -> None:
    """Trains until somebody makes the file `stop-NAME`."""
    Path(notes).mkdir(exist_ok=True)
    current_gang().run(until_told, store, notes, name)


def resized(steps: int, store: str, notes: str) -> int:
    """Stays at step 3 of its first attempt until it is told to leave, and leaves when it may."""
    folder, attempt = Path(notes), int(os.environ["DSEC_ATTEMPT"])
    checkpoint = run.checkpoints(store, every=1000, replicated=True)
    state = checkpoint.restore({"sum": 0})

    @run.on_evict
    def snapshot(step: int) -> None:
        (folder / "leaves").touch()
        wait(lambda: (folder / "may leave").exists())
        checkpoint.save(step, state)

    for step in run.steps(steps):
        state["sum"] += 1
        agree(0)  # the collective that a data-parallel step has
        with (folder / f"rank-{run.rank}").open("a") as file:
            file.write(f"{attempt} {step} {state['sum']} {run.world_size}\n")
        if step == 1:
            checkpoint.save(step + 1, state)
        if step == 3 and attempt == 1:
            wait(lambda: run.notice is not None)
    checkpoint.save(steps, state)
    return int(state["sum"])


def wait(condition: Callable[[], bool]) -> None:
    """Until it holds, for no longer than a test has patience."""
    until = time.monotonic() + 240
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


@flow
def elastic(steps: int, store: str, notes: str) -> None:
    Path(notes).mkdir(exist_ok=True)
    current_gang().run(resized, steps, store, notes)


@flow
def holds(notes: str, name: str) -> None:
    """Has its cards until somebody makes the file `stop-NAME`."""
    Path(notes).mkdir(exist_ok=True)
    while not Path(notes, f"stop-{name}").exists():
        time.sleep(0.1)
