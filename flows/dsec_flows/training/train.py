"""`train`: any command or function on a gang.

The gang comes from the run's job variables (the pool's form, `prefect.yaml`); what runs, from the parameters. A rank
that fails is started again with all the others, from the newest checkpoint, as often as `restarts` allows, without
giving the devices back in between.
"""

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from dsec_blocks import current_gang
from dsec_blocks.checkpoints import open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.gang import CurrentGang, GangRunError, Results
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.names import ENV_STORE
from dsec_flows.training.report import TrainingReport
from dsec_flows.training.work import call


@flow(name="train", log_prints=True)
def train(
    command: str | list[str] | None = None,
    function: str | None = None,
    parameters: dict[str, Any] | None = None,
    per: str = "device",
    launcher: str = "plain",
    store: str | None = None,
    restarts: int = 0,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Run a command, or a function (`package.module:function` or `path/to/file.py:function`), on every rank.

    Args:
        command: What to run on each rank, as a line or a list of words.
        function: What to call on each rank instead.
        parameters: The function's arguments.
        per: "device" starts one rank a device, "member" one a node.
        launcher: How ranks find each other: plain, jax, or torchrun (commands; it starts each device's process).
        store: Where checkpoints go: a path, s3://bucket/prefix, or the name of a CheckpointStore block.
        restarts: How often failed ranks are started again from the newest checkpoint.
        env: Environment variables for the ranks.
    """
    return run_work(
        command=command,
        function=function,
        parameters=parameters or {},
        per=per,
        launcher=launcher,
        store=store,
        restarts=restarts,
        env=env or {},
    )


def run_work(
    *,
    command: str | list[str] | None,
    function: str | None,
    parameters: dict[str, Any],
    per: str,
    launcher: str,
    store: str | None,
    restarts: int,
    env: dict[str, str],
) -> list[Any]:
    """Run the work on the current gang, again after failures, and write the report; returns the ranks' results."""
    if (command is None) == (function is None):
        raise InvalidRequest("train: give either command or function")
    if restarts < 0:
        raise InvalidRequest(f"restarts: {restarts} is not a number of restarts (0 or more)")
    gang, clock = current_gang(), SystemClock()
    started = clock.monotonic()
    env = {**env, **({ENV_STORE: store} if store else {})}
    for restart in range(restarts + 1):
        try:
            results = _run_once(gang, command, function, parameters, per=per, launcher=launcher, env=env)
            break
        except GangRunError as error:
            if restart == restarts:
                raise
            get_run_logger().warning("restart %d of %d from the newest checkpoint: %s", restart + 1, restarts, error)
    gang.wait_for_checkpoints()
    address = open_store(store)
    commits = CommitLog(address.open(), gang.run_id).head().newest_first
    report = TrainingReport(
        work=function or (command if isinstance(command, str) else " ".join(command or [])),
        shape=gang.request.describe(),
        nodes=[member.node for member in gang.placement.members],
        ranks=len(results),
        attempt=gang.attempt,
        restarts=restart,
        seconds=clock.monotonic() - started,
        store=address.url,
        commits=[(commit.step, commit.attempt) for commit in commits],
        results=results,
    )
    create_markdown_artifact(report.to_markdown(), key="training-report", description="What ran, and its checkpoints")
    return list(results)


def _run_once(
    gang: CurrentGang,
    command: str | list[str] | None,
    function: str | None,
    parameters: dict[str, Any],
    *,
    per: str,
    launcher: str,
    env: dict[str, str],
) -> Results:
    if command is not None:
        return gang.run(command, per=per, launcher=launcher, env=env)
    return gang.run(call, function, parameters, per=per, launcher=launcher, env=env)
