"""What the fork-server goes through before it forks: all of it works with this Prefect, and leaves it fit to fork."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, threading
from dsec_workers.clusters.local import rehearsal, warmth
warmth.import_modules()
for part in rehearsal.PARTS:
    part()
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.events import Event
built = [model.__pydantic_complete__ for model in (FlowRun, DeploymentResponse, Event)]
print(json.dumps([threading.active_count(), built]))
"""


@pytest.mark.slow
def test_a_rehearsal_goes_through_and_leaves_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1, [True, True, True]]
