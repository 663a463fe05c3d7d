"""The demo's supporting cast: flows that hold GPUs, checkpoint in different ways, and end when they are told to."""

import time

from prefect import flow

from dsec_blocks.gang import current_gang, gang, run

STEP_SECONDS = 0.1


@gang(devices_per_node=2, priority=10, grace="10s")
@flow
def background(seconds: float = 30.0, checkpoint_every: int | None = 10, snapshot_on_notice: bool = False) -> int:
    """Work of low priority: steps of a tenth of a second, a checkpoint every so many, or only one at the start.

    With `snapshot_on_notice` it also answers an eviction with a checkpoint; otherwise it loses what came after its
    last one.
    """
    steps = round(seconds / STEP_SECONDS)
    results = current_gang().run(count, steps, checkpoint_every, snapshot_on_notice, per="member")
    return int(results[0])


def count(steps: int, checkpoint_every: int | None, snapshot_on_notice: bool) -> int:
    """Count steps; the state is the count."""
    checkpoints = run.checkpoints(every=checkpoint_every or steps + 1)
    state = checkpoints.restore(default={"count": 0})

    def snapshot(step: int) -> None:
        checkpoints.save(step, state)

    if snapshot_on_notice:
        run.on_evict(snapshot)
    for step in run.steps(steps):
        state["count"] += 1
        time.sleep(STEP_SECONDS)
        if run.should_checkpoint() or step == 0:
            snapshot(step + 1)
    return int(state["count"])


@gang(devices_per_node=1)
@flow
def small(seconds: float = 0.5) -> None:
    """A short piece of work on one GPU."""
    time.sleep(seconds)


@gang(devices_per_node=2, priority=80, preemptible=False)
@flow
def urgent(seconds: float = 2.0) -> None:
    """Work that cannot wait."""
    time.sleep(seconds)
