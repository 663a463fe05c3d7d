"""A flow reaches the pool by each of Prefect's own ways to deploy one, unchanged, and completes there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.deployments.runner import EntrypointType

from dsec_blocks.model.gangs import GangState
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer
from tests.integration import flows_under_test
from tests.integration.site import Site

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent.parent
PIPELINE = """
from prefect import flow

@flow
def pipeline():
    return "done"
"""
PREFECT_YAML = """
name: a-users-project
prefect-version: 3.9.1
deployments:
  - name: in-place
    entrypoint: pipeline.py:pipeline
    work_pool: &pool
      name: {pool}
      job_variables: {{devices_per_node: 1, priority: 3}}
  - name: cloned
    entrypoint: pipeline.py:pipeline
    work_pool: *pool
    pull:
      - prefect.deployments.steps.git_clone:
          repository: {repository}
          branch: main
"""


@pytest.fixture(scope="module")
def pool(
    prefect_server: PrefectServer, zygote: Zygote | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One worker for all of them: what differs is how the server comes to know the flow."""
    site = Site(server=prefect_server, home=tmp_path_factory.mktemp("ways"), zygote=zygote)
    site.start_worker()
    yield site
    site.close()


@pytest.fixture(scope="module")
def project(pool: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder under git, sent once with `prefect deploy --all`."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    project = tmp_path_factory.mktemp("project")
    (project / "pipeline.py").write_text(PIPELINE)
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "a pipeline"]):
        subprocess.run([*git, *words], check=True)
    (project / "prefect.yaml").write_text(PREFECT_YAML.format(pool=pool.pool, repository=f"file://{project}"))
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def completes(site: Site, name: str) -> None:
    """The deployment runs on the pool, with the gang that it asks for."""
    deployment = site.http.get(f"deployments/name/{name}").raise_for_status().json()["id"]
    body = {"state": {"type": "SCHEDULED"}}
    run = site.http.post(f"deployments/{deployment}/create_flow_run", json=body).raise_for_status().json()["id"]
    site.wait_state(run, "COMPLETED", "FAILED", "CRASHED")
    assert site.state(run)[0] == "COMPLETED", site.logs(run)
    gang = site.wait_gang(run, GangState.ENDED)
    assert (gang.request.devices, gang.request.priority, gang.attempt) == (1, 3, 1)


def test_prefect_deploy(pool: Site, project: Path) -> None:
    completes(pool, "pipeline/in-place")


def test_prefect_deploy_with_a_pull_step_that_clones_a_repository(pool: Site, project: Path) -> None:
    completes(pool, "pipeline/cloned")


def test_flow_deploy(pool: Site) -> None:
    flows_under_test.hello.deploy(
        name="by-module",
        work_pool_name=pool.pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
        job_variables={"devices_per_node": 1, "priority": 3, "env": {"PYTHONPATH": str(REPOSITORY)}},
    )
    completes(pool, "hello/by-module")


def test_from_source_and_deploy(pool: Site, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE.replace("def pipeline", "def sourced"))
    sourced = flow.from_source(source=str(tmp_path), entrypoint="pipeline.py:sourced")
    variables = {"devices_per_node": 1, "priority": 3}
    sourced.deploy(name="by-source", work_pool_name=pool.pool, job_variables=variables)  # type: ignore[union-attr]
    completes(pool, "sourced/by-source")
