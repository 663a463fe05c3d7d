"""`train` and `finetune` as Prefect flows on a real server, called locally with one member."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.checkpoints import open_store
from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.gang import GangRunError
from dsec_blocks.model.errors import CheckpointMissing, InvalidRequest
from dsec_flows.training.report import TrainingReport
from dsec_flows.training.work import load_function
from tests.fixtures.prefect import PrefectServer, client_settings

pytestmark = pytest.mark.slow

WORK = """
from pathlib import Path
from dsec_blocks import run

def learn(steps, log=None, fail_once=None):
    checkpoint = run.checkpoints(every=2)
    state = checkpoint.restore({"sum": 0})
    started = checkpoint.step
    for step in run.steps(steps):
        state["sum"] += 1
        if run.should_checkpoint():
            checkpoint.save(step + 1, state)
        if fail_once and step == 3 and not Path(fail_once).exists():
            Path(fail_once).touch()
            raise RuntimeError("a bit fell over")
    checkpoint.save(steps, state)
    return {"sum": state["sum"], "started": started}

def forget(steps):
    return steps
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(WORK)
    return path


@pytest.fixture(scope="module")
def prefect_client(prefect_server: PrefectServer) -> Iterator[None]:
    with client_settings(prefect_server):
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_client: None) -> Path:
    monkeypatch.setenv("DSEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dsec_blocks.gang.membership._known", None)
    return tmp_path


def artifacts(key: str) -> list[Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def test_a_function_is_trained_and_reported(here: Path, script: Path) -> None:
    from dsec_flows.training import train

    assert train(function=f"{script}:learn", parameters={"steps": 5}) == [{"sum": 5, "started": 0}]
    page = artifacts("training-report")[-1].data
    assert "step 5 (attempt 1)" in page and f"{script}:learn" in page and "'sum': 5" in page


def test_a_command_is_run_on_each_rank(here: Path) -> None:
    from dsec_flows.training import train

    assert train(command=[sys.executable, "-c", "import os; assert os.environ['A'] == '1'"], env={"A": "1"}) == [0]


def test_a_rank_that_fails_is_started_again_from_the_newest_checkpoint(here: Path, script: Path) -> None:
    from dsec_flows.training import train

    parameters = {"steps": 6, "fail_once": str(here / "failed")}
    assert train(function=f"{script}:learn", parameters=parameters, restarts=1) == [{"sum": 6, "started": 4}]
    (here / "failed").unlink()
    with pytest.raises(GangRunError, match="a bit fell over"):
        train(function=f"{script}:learn", parameters=parameters)


def test_a_finetune_goes_on_from_where_the_last_run_of_the_model_ended(here: Path, script: Path) -> None:
    from dsec_flows.training import finetune

    arguments = {"function": f"{script}:learn", "parameters": {"steps": 5}, "launcher": "plain"}
    assert finetune("tiny", **arguments) == [{"sum": 5, "started": 0}]
    assert finetune("tiny", **arguments) == [{"sum": 10, "started": 0}]
    assert finetune("other", **arguments) == [{"sum": 5, "started": 0}]
    place = open_store().open()
    seen = place.head("model.tiny")
    assert seen is not None
    assert CommitLog(place, seen.fields["run"]).head().newest_first[0].step == 5


def test_a_finetune_that_saves_nothing_fails_and_leaves_the_model_as_it_was(here: Path, script: Path) -> None:
    from dsec_flows.training import finetune

    with pytest.raises(CheckpointMissing, match="nothing to go on from"):
        finetune("tiny", function=f"{script}:forget", parameters={"steps": 1}, launcher="plain")
    assert open_store().open().head("model.tiny") is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "give either command or function"),
        ({"command": "true", "function": "a:b"}, "give either command or function"),
        ({"command": "true", "restarts": -1}, "restarts: -1"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(here: Path, parameters: dict[str, Any], message: str) -> None:
    from dsec_flows.training import train

    with pytest.raises(InvalidRequest, match=message):
        train(**parameters)


@pytest.mark.parametrize("name", ["nothing", "no.such.module:f", "no_such_file.py:f", "os.path:no_such", ":f", "os:"])
def test_a_function_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest, match="function: "):
        load_function(name)


def test_a_function_is_found_in_a_module_or_a_file(script: Path) -> None:
    assert load_function("os.path:join") is os.path.join
    assert load_function(f"{script}:forget")(3) == 3


def test_the_report_reads_well() -> None:
    page = TrainingReport(
        work="train.py", shape="2×4 H100", nodes=["n1", "n2"], ranks=8, attempt=2, restarts=0, seconds=75.0,
        store="file:///x", commits=[(40, 2), (20, 1)], results=["a|b", None],
    ).to_markdown()  # fmt: skip
    assert "| Gang | 2×4 H100, 8 ranks on n1, n2 |" in page
    assert "step 40 (attempt 2), step 20 (attempt 1)" in page
    assert "a\\|b" in page
