"""`import dsec_blocks` and `dsec --help` stay light: Prefect loads collections often, and people wait for a prompt."""

import subprocess
import sys

import pytest

HEAVY = ("prefect", "sqlalchemy", "numpy", "boto3", "alembic", "jax", "plotly")


@pytest.mark.parametrize("module", ["dsec_blocks", "dsec_blocks.model.requests", "dsec_deployments.cli"])
def test_importing_is_light(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
