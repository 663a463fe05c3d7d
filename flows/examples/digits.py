"""Train a small network on scikit-learn's digits, data-parallel over the members of a gang, with JAX.

Every member holds a copy of the network and works on its own share of each batch; the gradients are averaged over all
members (gloo on CPUs) before anybody takes the step. The run can be evicted at any time: all members stop before the
same step, save weights, momentum, random generator and place in the data, and the loss continues exactly where it was.

    python flows/examples/digits.py            # here, with one member
    dsec deploy flows/examples/digits.py:digits
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from prefect import flow

from dsec_blocks import current_gang, gang, run

HIDDEN = 64
BATCH = 128


@gang(nodes=2, devices_per_node=1, priority=10, grace="20s")
@flow(log_prints=True)
def digits(
    steps: int = 300,
    seed: int = 0,
    losses: str = "losses.jsonl",
    store: str | None = None,
    checkpoint_every: int = 100,
    step_seconds: float = 0.0,
    exchange_gradients: bool = True,
) -> float:
    """Train for `steps` steps and return the accuracy; each step's loss is a line in `losses`.

    `step_seconds` makes a step last at least that long, `exchange_gradients=False` lets each member train alone: both
    are for demonstrations.
    """
    results = current_gang().run(
        train,
        steps=steps,
        seed=seed,
        losses=str(Path(losses).absolute()),
        store=store,
        checkpoint_every=checkpoint_every,
        step_seconds=step_seconds,
        exchange_gradients=exchange_gradients,
        per="member",
        launcher="jax",
    )
    print(f"accuracy {results[0]:.3f} after {steps} steps on {len(results)} members")
    return results[0]


def train(
    *,
    steps: int,
    seed: int,
    losses: str,
    store: str | None,
    checkpoint_every: int,
    step_seconds: float,
    exchange_gradients: bool,
) -> float:
    """One member's part."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if run.world_size > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", run.world_size, run.rank)
    try:
        return _train(steps, seed, Path(losses), store, checkpoint_every, step_seconds, exchange_gradients)
    finally:
        if run.world_size > 1:
            jax.distributed.shutdown()


def _train(
    steps: int,
    seed: int,
    losses: Path,
    store: str | None,
    checkpoint_every: int,
    step_seconds: float,
    exchange_gradients: bool,
) -> float:
    import jax
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16.0).astype(np.float32), labels.astype(np.int32)
    training = len(images) - 297

    checkpoint = run.checkpoints(store, every=checkpoint_every)
    state = checkpoint.restore(_initial_state(seed, training))
    one_step, share, copy_back = _data_parallel(exchange_gradients)
    weights, momentum = share(state["weights"]), share(state["momentum"])

    def save(step: int) -> None:
        checkpoint.save(step, {**state, "weights": copy_back(weights), "momentum": copy_back(momentum)})

    run.on_evict(save)
    for step in run.steps(steps):
        started = time.monotonic()
        mine = _next_batch(state, training)[run.rank :: run.world_size]
        weights, momentum, loss = one_step(weights, momentum, share(images[mine]), share(labels[mine]))
        if run.rank == 0:
            with losses.open("a") as file:
                file.write(json.dumps({"step": step, "loss": float(loss)}) + "\n")
        run.report(step=step, loss=float(loss))
        if run.should_checkpoint():
            save(step + 1)
        time.sleep(max(0.0, step_seconds - (time.monotonic() - started)))
    save(steps)
    guesses = jax.numpy.argmax(_network(copy_back(weights), images[training:]), axis=1)
    return float((np.asarray(guesses) == labels[training:]).mean())


def _initial_state(seed: int, training: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
    weights = [(generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
    return {
        "weights": weights,
        "momentum": [np.zeros_like(array) for array in weights],
        "generator": generator,
        "order": generator.permutation(training),
        "offset": 0,
    }


def _next_batch(state: dict[str, Any], training: int) -> np.ndarray:
    """The next batch's indices, the same on every member; a new shuffle each epoch."""
    if state["offset"] + BATCH > training:
        state["order"], state["offset"] = state["generator"].permutation(training), 0
    start = state["offset"]
    state["offset"] = start + BATCH
    return state["order"][start : start + BATCH]


def _network(weights: Any, images: Any) -> Any:
    import jax.numpy as jnp

    first, first_bias, second, second_bias = weights
    return jnp.tanh(images @ first + first_bias) @ second + second_bias


def _data_parallel(exchange_gradients: bool) -> Any:
    """The training step over all members, and how arrays get onto the members and back.

    Each member's copy is one row of an array that is laid out over the members, so that copies can differ (without
    the exchange they do).
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((run.world_size,), ("members",), devices=jax.devices()[: run.world_size])
    row = PartitionSpec("members")
    layout = NamedSharding(mesh, row)

    def share(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.make_array_from_process_local_data(layout, np.asarray(a)[None]), tree)

    def copy_back(tree: Any) -> Any:
        return jax.tree.map(lambda a: np.asarray(a.addressable_shards[0].data)[0], tree)

    def mean_loss(weights: Any, images: Any, labels: Any) -> Any:
        chances = jax.nn.log_softmax(_network(weights, images))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    def member_step(weights: Any, momentum: Any, images: Any, labels: Any) -> Any:
        weights, momentum, images, labels = jax.tree.map(lambda a: a[0], (weights, momentum, images, labels))
        loss, gradients = jax.value_and_grad(mean_loss)(weights, images, labels)
        if exchange_gradients:
            gradients = jax.lax.pmean(gradients, "members")
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        weights = jax.tree.map(lambda w, m: w - 0.05 * m, weights, momentum)
        weights, momentum = jax.tree.map(lambda a: a[None], (weights, momentum))
        return weights, momentum, jax.lax.pmean(loss, "members")

    one_step = jax.jit(
        jax.shard_map(member_step, mesh=mesh, in_specs=(row, row, row, row), out_specs=(row, row, PartitionSpec()))
    )
    return one_step, share, copy_back


if __name__ == "__main__":
    digits()
