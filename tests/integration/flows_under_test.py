"""Flows as users write them: nothing of DSec is imported except where a test is about it."""

import json
import os
import time
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.deployments import run_deployment
from prefect.flow_runs import pause_flow_run, suspend_flow_run


def note(where: str, text: str) -> None:
    """Append one line, so that a test sees what was executed, and how often."""
    with Path(where).open("a") as file:
        file.write(f"{text}\n")


@flow
def hello(where: str = "") -> str:
    get_run_logger().info("hello from attempt %s", os.environ.get("DSEC_ATTEMPT"))
    if where:
        note(where, f"hello {os.environ.get('DSEC_RUN_ID')} {os.environ.get('DSEC_ATTEMPT')}")
    return "hello"


@flow
def sleeper(where: str = "", seconds: float = 60.0, at_first: float | None = None) -> None:
    """Sleeps; `at_first`, if given, are the seconds of the first attempt, which is to be interrupted."""
    note(where, f"begin {os.environ.get('DSEC_ATTEMPT')} {os.getpid()}")
    if at_first is not None and os.environ.get("DSEC_ATTEMPT") == "1":
        seconds = at_first
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    note(where, f"end {os.environ.get('DSEC_ATTEMPT')}")


@flow
def failing(where: str = "") -> None:
    note(where, "tried")
    raise ValueError("this flow always fails")


@flow
def dying(where: str = "", deaths: int = 1) -> None:
    """Its process is killed, as by the kernel when memory runs out, the first `deaths` times."""
    note(where, "begin")
    if len(Path(where).read_text().split()) <= deaths:
        os.kill(os.getpid(), 9)


@flow
def suspending(where: str = "") -> None:
    """Gives its infrastructure back in the middle, and goes on when it is resumed."""
    note(where, "before")
    suspend_flow_run(key="once", timeout=600)
    note(where, "after")


@flow
def pausing(where: str = "") -> None:
    """Waits in the middle, in its process and with its GPUs, until it is resumed."""
    note(where, "before")
    pause_flow_run(timeout=600, poll_interval=1)
    note(where, "after")


@flow
def tells(where: str, names: list[str]) -> None:
    """Notes what its environment says."""
    note(where, json.dumps({name: os.environ.get(name) for name in names}))


@flow(retries=2)
def fails_when_resumed(where: str, failures: int) -> None:
    """The first attempt stays until it is interrupted; the next fails so often before it succeeds."""
    note(where, f"begin {os.environ.get('DSEC_ATTEMPT')}")
    if os.environ.get("DSEC_ATTEMPT") == "1":
        time.sleep(60)
    if Path(where).read_text().split().count("2") <= failures:
        raise ValueError("a failure of the user's own")


@flow
def calls(deployment: str, parameters: dict[str, Any]) -> None:
    """Runs a deployment as its child, and waits for it."""
    run_deployment(deployment, parameters=parameters, poll_interval=1)


@flow
def dying_late(where: str = "", seconds: float = 5.0) -> None:
    """Its process is killed after a while, the first time."""
    note(where, "begin")
    if len(Path(where).read_text().split()) == 1:
        time.sleep(seconds)
        os.kill(os.getpid(), 9)


@flow
def inner(where: str, seconds: float) -> str:
    """Run in the process of its parent, on its parent's gang."""
    note(where, f"inner {os.environ.get('DSEC_ATTEMPT')}")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    return "inner is done"


@flow
def outer(where: str = "", seconds: float = 4.0) -> str:
    """Calls another flow, as pipelines do."""
    return inner(where, seconds)


@flow
def reads(where: str, uri: str) -> None:
    """Acquires a bundle from its node's cache and reads it."""
    from dsec_blocks.cache import open_cache

    with open_cache().acquire(uri) as bundle:
        read = sum(len(path.read_bytes()) for path in bundle.path.rglob("*") if path.is_file())
        note(where, json.dumps({"bytes": read, "fetched": bundle.acquired.fetched_bytes}))
