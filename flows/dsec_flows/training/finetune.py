"""`finetune`: a recurring run that goes on from where the last one of the same model ended.

Each finished run becomes the model's newest version: a pointer in the checkpoint store, moved by compare-and-set, says
which. An evicted run resumes from its own checkpoints; only a run without any starts from the model's newest version.
"""

from typing import Any

from prefect import flow, get_run_logger

from dsec_blocks import current_gang
from dsec_blocks.checkpoints import open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.model.errors import CheckpointMissing, InvalidRequest
from dsec_blocks.model.names import ENV_START_FROM
from dsec_flows.training.train import run_work

POINTER = "model."


@flow(name="finetune", log_prints=True)
def finetune(
    model: str,
    function: str,
    parameters: dict[str, Any] | None = None,
    per: str = "member",
    launcher: str = "jax",
    store: str | None = None,
    restarts: int = 1,
) -> list[Any]:
    """Train `model` on from its newest version; the function must use `run.checkpoints()`.

    Args:
        model: The name under which versions are found again.
        function: What to call on each rank: `package.module:function` or `path/to/file.py:function`.
        parameters: The function's arguments.
        per: "device" starts one rank a device, "member" one a node.
        launcher: How ranks find each other: plain or jax.
        store: Where checkpoints go: a path, s3://bucket/prefix, or the name of a CheckpointStore block.
        restarts: How often failed ranks are started again from the newest checkpoint.
    """
    if not model or not all(letter.isalnum() or letter in "-_." for letter in model):
        raise InvalidRequest(f"model: {model!r} may hold letters, digits, '-', '_' and '.' only")
    place, run_id = open_store(store).open(), current_gang().run_id
    seen = place.head(f"{POINTER}{model}")
    source = seen.fields["run"] if seen is not None else None
    get_run_logger().info("%s goes on from %s", model, f"run {source}" if source else "nothing: this is its first run")
    results = run_work(
        command=None,
        function=function,
        parameters=parameters or {},
        per=per,
        launcher=launcher,
        store=store,
        restarts=restarts,
        env={ENV_START_FROM: source} if source and source != run_id else {},
    )
    if not CommitLog(place, run_id).head().commits:
        raise CheckpointMissing(
            f"{model}: the run ended without a checkpoint, so there is nothing to go on from; save one after the last "
            f"step in {function} (run.checkpoints().save)"
        )
    if not place.swap_head(f"{POINTER}{model}", seen, {"run": run_id}):
        get_run_logger().warning("%s: another run finished meanwhile and stays the newest version", model)
    return results
