"""Small deterministic flows. Each step leaves a line, so that a lost, repeated or overlapping step is seen."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from blake3 import blake3
from prefect import flow

from dsec_blocks import current_gang, gang, open_cache, run

LINGER_SECONDS = 30.0
COMMIT_SECONDS = 1.0


def note(where: str, **fields: object) -> None:
    """One line, appended in one write."""
    line = json.dumps({"attempt": int(os.environ["DSEC_ATTEMPT"]), "at": time.monotonic(), **fields})
    descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


def read(where: str, bundle: str, path: Path) -> None:
    """Note what each file of the bundle hashes to, as this rank reads it."""
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest = blake3(file.read_bytes()).hexdigest()
        note(where, what="read", rank=run.rank, bundle=bundle, path=str(file.relative_to(path)), digest=digest)


def work(
    where: str,
    store: str,
    bundle: str,
    steps: int,
    step_seconds: float,
    lingers: bool,
    every: int,
    deaf: bool,
    full: bool,
    commits_each: bool,
) -> int:
    """One rank: count steps, checkpoint, leave when told. A node's first reads the bundle before and after that."""
    with ExitStack() as held:
        if bundle and run.local_rank == 0:
            path = held.enter_context(open_cache().acquire(bundle)).path
            read(where, bundle, path)
            done = count(where, store, steps, step_seconds, lingers, every, deaf, full, commits_each)
            read(where, bundle, path)
            return done
        return count(where, store, steps, step_seconds, lingers, every, deaf, full, commits_each)


def count(
    where: str,
    store: str,
    steps: int,
    step_seconds: float,
    lingers: bool,
    every: int,
    deaf: bool,
    full: bool,
    commits_each: bool,
) -> int:
    """Count steps from where the checkpoint ends."""
    checkpoint = run.checkpoints(store if "://" in store else f"file://{store}", every=every)
    state = checkpoint.restore({"done": 0})
    note(where, what="begin", rank=run.rank, step=checkpoint.step)

    def snapshot(step: int) -> None:
        if full and os.environ["DSEC_ATTEMPT"] == "1":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as if the spool's disk were full
        checkpoint.save(step, state)

    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        run.on_evict(snapshot)
    indices = range(checkpoint.step, steps) if deaf else run.steps(steps)
    for step in indices:
        note(where, what="step", rank=run.rank, step=step)
        time.sleep(step_seconds)
        if lingers and step == steps // 2 and os.environ["DSEC_ATTEMPT"] == "1":
            wait_for_notice()
        state["done"] = step + 1
        if run.world_size > 1:
            gang.agree(0)  # the collective that a data-parallel step has
        if (step + 1) % every == 0 if deaf else run.should_checkpoint():
            before = newest_head(store)
            checkpoint.save(step + 1, state)
            if commits_each:
                wait_for_commit(store, before)
    return int(state["done"])


def wait_for_notice() -> None:
    """Stay until the story interrupts this run, which on a slow machine takes long."""
    deadline = time.monotonic() + LINGER_SECONDS
    while run.notice is None and time.monotonic() < deadline:
        time.sleep(0.01)


def wait_for_commit(store: str, before: int) -> None:
    """Stay until this save is committed: on a slow machine several would become one commit."""
    deadline = time.monotonic() + COMMIT_SECONDS
    while newest_head(store) == before and time.monotonic() < deadline:
        time.sleep(0.005)


def newest_head(store: str) -> int:
    """The number of the newest HEAD in a store of one run."""
    return max((int(path.name) for path in Path(store).glob("ckpt/*/HEAD/*") if path.name.isdigit()), default=0)


@flow
def train(
    where: str,
    store: str,
    bundle: str = "",
    steps: int = 60,
    step_seconds: float = 0.02,
    lingers: bool = False,
    every: int = 10,
    deaf: bool = False,
    full: bool = False,
    commits_each: bool = False,
) -> int:
    """All ranks count to `steps`; one that `lingers` stops half-way, in its first attempt, until it is interrupted."""
    note(where, what="flow")
    results = current_gang().run(
        work, where, store, bundle, steps, step_seconds, lingers, every, deaf, full, commits_each, per="device"
    )
    assert all(done == steps for done in results), results
    return steps


@flow
def command(where: str) -> None:
    """A command on every rank, not a function."""
    note(where, what="flow")
    code = "import os,sys; open(sys.argv[1], 'a').write('')"
    current_gang().run([sys.executable, "-S", "-c", code, where], per="device")


@flow
def leaky(where: str) -> None:
    """A rank that leaves a child in a session of its own, with the devices in its hands, and a flow that does too."""
    note(where, what="flow")
    current_gang().run(leave_a_child, per="device")
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"], start_new_session=True)


def leave_a_child() -> None:
    subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(300)"], start_new_session=True, close_fds=False
    )


@flow
def waits(where: str, seconds: float = 60.0) -> None:
    """Sleeps in steps; what a cancellation ends."""
    note(where, what="flow")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.02)
    note(where, what="end")


@flow
def stubborn(where: str, in_rank: bool = False) -> None:
    """Does not hear SIGTERM the first time it runs: the flow itself, or its rank."""
    note(where, what="flow")
    if os.environ["DSEC_ATTEMPT"] == "1":
        if in_rank:
            current_gang().run(stay, where, per="device")
        else:
            stay(where)


def stay(where: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(where, what="stays")
    time.sleep(60)


@flow
def one_rank_fails(where: str) -> None:
    """Rank 0 fails while rank 1 does not want to end."""
    note(where, what="flow")
    current_gang().run(fail_or_stay, where, per="device")


def fail_or_stay(where: str) -> None:
    if "failed once" in Path(where).read_text():
        return
    if run.rank > 0:
        stay(where)
    while "stays" not in Path(where).read_text():
        time.sleep(0.02)
    note(where, what="failed once")
    raise ValueError("the first rank fails")
