"""The pipeline of the README runs as it stands: here and now, and on a pool as a plain `dsec up` declares it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_deployments.installation import DEFAULT_GPUS, DEFAULT_NODES
from tests.deployments.test_command import dsec
from tests.integration.site import Site

pytestmark = pytest.mark.slow
README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def pipeline(site: Site) -> Path:
    """The block, as a newcomer saves it."""
    block = re.search(r"## A pipeline\n+```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    path = site.home / "pipeline.py"
    path.write_text(block[1])
    return path


def test_it_runs_here_and_now_with_one_member(site: Site, pipeline: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DSEC_")}
    environment = {**kept, "PREFECT_API_URL": site.api_url, "DSEC_HOME": str(site.home)}
    code = "from pipeline import pipeline; pipeline(steps=20)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=pipeline.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_dsec_deploy_takes_it_and_it_runs_on_the_pool(site: Site, pipeline: Path) -> None:
    site.nodes, site.gpus = DEFAULT_NODES, DEFAULT_GPUS
    site.start_worker()
    site.wait("the worker to say what there is", lambda: site.ledger.nodes(site.pool))
    at = {"DSEC_POOL": site.pool, "DSEC_LEDGER_URL": site.ledger_url, "PREFECT_API_URL": site.api_url}
    done = dsec("deploy", f"{pipeline.name}:pipeline", "--param", "steps=30", home=site.home, **at)
    assert done.returncode == 0, done.stderr
    deployment = site.http.get("deployments/name/pipeline/pipeline").raise_for_status().json()
    body = {"state": {"type": "SCHEDULED"}}
    created = site.http.post(f"deployments/{deployment['id']}/create_flow_run", json=body).raise_for_status()
    run = created.json()["id"]
    site.wait_state(run, "COMPLETED", seconds=60)
    gang = site.wait_gang(run, GangState.ENDED)
    assert gang.request.devices == DEFAULT_NODES * DEFAULT_GPUS
    assert gang.last_step is not None or gang.outcome["flow_exit"] == 0
