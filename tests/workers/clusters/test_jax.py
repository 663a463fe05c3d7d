"""The jax launcher: each process is told all that JAX would otherwise ask its surroundings for."""

import os
import subprocess
import sys

import pytest

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.local.ranks import ranks_of
from tests.fixtures.ports import free_port

TWO_CARDS = Placement(members=(MemberPlacement(node="a", devices=("GPU-a0", "GPU-a1")),))
MEETS = """
import jax
jax.distributed.initialize(num_processes=1, process_id=0, initialization_timeout=60)
print(jax.process_count(), jax.process_index())
jax.distributed.shutdown()
"""


@pytest.mark.parametrize(("per", "told"), [("member", ["0,1"]), ("device", ["0", "0"])])
def test_a_process_counts_the_devices_that_it_may_see_from_zero(per: str, told: list[str]) -> None:
    ranks = ranks_of(TWO_CARDS, per=per, master_port=29500, env={}, launcher="jax")
    assert [rank.env["JAX_LOCAL_DEVICE_IDS"] for rank in ranks] == told


@pytest.mark.slow
def test_in_a_pod_without_an_accounts_token_jax_does_not_ask_the_cluster() -> None:
    """It failed with "Service token file does not exist" where the `kubernetes` package was installed."""
    (rank,) = ranks_of(TWO_CARDS, per="member", master_port=free_port(), env={}, launcher="jax")
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", MEETS], env={**pod, **rank.env}, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "1 0\n"), done.stderr
