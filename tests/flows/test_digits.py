"""The digits example: real gradients between two real JAX processes, and a loss that continues exactly."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.checkpoints.uploader import main as upload
from tests.blocks.gang.supervisor_double import REPOSITORY, SupervisorDouble
from tests.fixtures.forking import Zygote

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 60


def losses(
    directory: Path, zygote: Zygote | None, *, evict_at: tuple[int, ...] = (), seed: int = 0, exchange: bool = True
) -> dict[int, float]:
    """Train on two members, evicted when they reach each of `evict_at`; the loss at each step, none done twice.

    On the pool, too, ranks are forked with Prefect in place, which the flow's module imports.
    """
    directory.mkdir()
    log = directory / "losses"
    for attempt, evict in enumerate((*evict_at, None), start=1):
        supervisor = SupervisorDouble(directory, world_size=2, attempt=attempt)

        def notify(request: dict[str, Any], supervisor: Any = supervisor, evict: int | None = evict) -> None:
            if evict is not None and request["op"] == "step" and request["step"] >= evict and not supervisor.notice:
                supervisor.notify()

        supervisor.on_request = notify
        uploader = threading.Thread(target=upload, args=(supervisor.spool, supervisor.path))
        uploader.start()
        supervisor.start(
            _train,
            steps=STEPS, seed=seed, losses=str(log), store=str(directory / "store"), checkpoint_every=1000,
            step_seconds=0.0, exchange_gradients=exchange, zygote=zygote,
            env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'flows' / 'examples'}"},
        )  # fmt: skip
        codes = supervisor.wait(200)
        (supervisor.spool / "closed").touch()
        uploader.join()
        supervisor.close()
        assert codes == ([0, 0] if evict is None else [75, 75])
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS)), "a step was lost or done twice"
    return {row["step"]: row["loss"] for row in rows}


def _train(**parameters: Any) -> float:
    import digits

    return digits.train(**parameters)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote | None) -> dict[int, float]:
    """The losses of a run that nobody interrupts."""
    return losses(tmp_path_factory.mktemp("digits") / "reference", zygote)


def test_the_loss_of_an_evicted_run_equals_the_uninterrupted_one_at_every_step(
    tmp_path: Path, reference: dict[int, float], zygote: Zygote | None
) -> None:
    evicted = losses(tmp_path / "evicted", zygote, evict_at=(20, 40))
    assert max(abs(reference[step] - evicted[step]) for step in reference) <= 1e-6
    assert reference[STEPS - 1] < 0.5 * reference[0]


def test_another_seed_or_no_gradient_exchange_gives_another_loss(
    tmp_path: Path, reference: dict[int, float], zygote: Zygote | None
) -> None:
    other_seed = losses(tmp_path / "seed", zygote, seed=1)
    alone = losses(tmp_path / "alone", zygote, exchange=False)
    assert max(abs(reference[step] - other_seed[step]) for step in reference) > 1e-3
    assert max(abs(reference[step] - alone[step]) for step in reference) > 1e-3
