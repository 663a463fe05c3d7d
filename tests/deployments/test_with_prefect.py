"""What the command does to a real Prefect server: pools, queues, finding runs, cancelling them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.teams import Team
from dsec_deployments import provisioning, startup
from dsec_deployments.prefect_api import PrefectApi
from dsec_deployments.runs import find_run
from dsec_workers.form import SHIPPED, default_template
from tests.deployments.test_command import dsec, one_line
from tests.fixtures.prefect import PrefectServer

pytestmark = pytest.mark.slow
TEMPLATE = {
    "job_configuration": {"command": "{{ command }}"},
    "variables": {"type": "object", "properties": {"command": {}}},
}


@pytest.fixture
def api(prefect_server: PrefectServer) -> PrefectApi:
    return PrefectApi(prefect_server.api_url)


@pytest.fixture
def pool(api: PrefectApi) -> str:
    name = f"pool-{uuid4().hex[:8]}"
    assert provisioning.create_pool(api, pool=name, template=TEMPLATE)
    return name


def scheduled_run(api: PrefectApi, pool: str, name: str) -> str:
    flow = api.write("POST", "flows/", {"name": "f"}, at="test")
    body = {"name": uuid4().hex, "flow_id": flow["id"], "work_pool_name": pool}
    deployment = api.write("POST", "deployments/", body, at="test")
    path = f"deployments/{deployment['id']}/create_flow_run"
    return str(api.write("POST", path, {"name": name, "state": {"type": "SCHEDULED"}}, at="test")["id"])


def test_creating_a_pool_twice_changes_nothing(api: PrefectApi, pool: str) -> None:
    assert not provisioning.create_pool(api, pool=pool, template=TEMPLATE)


def test_a_pool_of_another_type_is_refused(api: PrefectApi) -> None:
    name = f"process-{uuid4().hex[:8]}"
    api.write("POST", "work_pools/", {"name": name, "type": "process"}, at="test")
    with pytest.raises(DsecError, match="exists with type process"):
        provisioning.create_pool(api, pool=name, template=TEMPLATE)


def test_a_team_is_a_work_queue_and_a_row(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    words = ("--quota", "8", "--borrow", "4", "--pool", pool)
    done = dsec("team", "add", "vision", *words, home=tmp_path, PREFECT_API_URL=api.url)
    assert done.returncode == 0, done.stderr
    assert api.get(f"work_pools/{pool}/queues/vision")["description"].startswith("Team vision: 8 devices")
    listed = json.loads(dsec("team", "list", "--json", "--pool", pool, home=tmp_path).stdout)
    vision = next(team for team in listed if team["team"] == "vision")
    assert (vision["quota"], vision["borrow"], vision["weight"]) == (8, 4, 1.0)


def test_setting_one_right_of_a_team_leaves_the_others(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    at = {"home": tmp_path, "PREFECT_API_URL": api.url}
    dsec("team", "add", "vision", "--quota", "8", "--weight", "2", "--pool", pool, **at)  # type: ignore[arg-type]
    done = dsec("team", "set", "vision", "--quota", "3", "--pool", pool, **at)  # type: ignore[arg-type]
    assert "3 devices of its own" in done.stdout
    assert "weight 2" in done.stdout


def test_an_unknown_team_is_one_line_with_those_there_are(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    done = dsec("team", "set", "visoin", "--quota", "3", "--pool", pool, home=tmp_path, PREFECT_API_URL=api.url)
    assert done.returncode == 2
    assert "unknown team visoin; teams are default" in one_line(done)


def test_a_team_needs_its_pool(api: PrefectApi, tmp_path: Path) -> None:
    done = dsec("team", "add", "x", "--pool", "nowhere", home=tmp_path, PREFECT_API_URL=api.url)
    assert done.returncode == 1
    assert "work pool nowhere does not exist" in one_line(done)


def test_a_run_is_found_by_id_prefix_and_name(api: PrefectApi, pool: str) -> None:
    provisioning.create_queue(api, pool=pool, team=Team(name="default", nominal_devices=0))
    run = scheduled_run(api, pool, "bronze-otter")
    for text in (run, run[:8], "bronze-otter"):
        assert find_run(api, text, pool=pool)["id"] == run


def test_a_name_that_two_runs_have_is_answered_with_both(api: PrefectApi, pool: str) -> None:
    first, second = scheduled_run(api, pool, "twin"), scheduled_run(api, pool, "twin")
    with pytest.raises(DsecError) as raised:
        find_run(api, "twin", pool=pool)
    assert first[:8] in str(raised.value)
    assert second[:8] in str(raised.value)


def test_cancelling_a_waiting_run_makes_it_cancelled(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    run = scheduled_run(api, pool, "unwanted")
    words = ("--why", "a typo", "--pool", pool)
    done = dsec("cancel", "unwanted", *words, home=tmp_path, PREFECT_API_URL=api.url)
    assert done.returncode == 0, done.stderr
    state = api.get(f"flow_runs/{run}")["state"]
    assert state["type"] == "CANCELLED"


def test_cancelling_a_run_that_ended_says_why_not(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    run = scheduled_run(api, pool, "done")
    body = {"state": {"type": "COMPLETED"}, "force": True}
    api.write("POST", f"flow_runs/{run}/set_state", body, at="test")
    done = dsec("cancel", "done", "--pool", pool, home=tmp_path, PREFECT_API_URL=api.url)
    assert done.returncode == 1
    assert "cannot be cancelled" in one_line(done)


def test_explain_tells_a_run_that_no_worker_has_seen(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    scheduled_run(api, pool, "lonely")
    done = dsec("explain", "lonely", "--json", "--pool", pool, home=tmp_path, PREFECT_API_URL=api.url)
    told = json.loads(done.stdout)
    assert told["gang"] is None
    assert told["states"][0]["name"] == "Scheduled"


def test_logs_prints_what_the_run_said(api: PrefectApi, pool: str, tmp_path: Path) -> None:
    run = scheduled_run(api, pool, "talker")
    line = {"name": "prefect.flow_runs", "level": 20, "message": "epoch 1", "flow_run_id": run}
    lines = [
        {**line, "message": f"epoch {n}", "timestamp": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z"} for n in range(250)
    ]
    api._client.post("logs/", json=lines).raise_for_status()
    done = dsec("logs", "talker", "--pool", pool, home=tmp_path, PREFECT_API_URL=api.url)
    assert [row.split()[-1] for row in done.stdout.splitlines()] == [str(n) for n in range(250)]


def test_following_a_log_prints_a_line_that_arrives_late_once_and_names_its_rank(
    api: PrefectApi, pool: str, tmp_path: Path
) -> None:
    run = scheduled_run(api, pool, "late")

    def log(name: str, message: str, second: int) -> None:
        line = {"name": name, "level": 20, "message": message, "flow_run_id": run}
        line["timestamp"] = f"2030-01-01T00:00:{second:02}Z"
        api.write("POST", "logs/", [line], at="test")  # type: ignore[arg-type]

    log("prefect.flow_runs", "begins", 10)
    log("prefect.flow_runs", "goes on", 20)
    environment = {"DSEC_POOL": pool, "PREFECT_API_URL": api.url}
    with ThreadPoolExecutor(1) as pool_of_one:
        following = pool_of_one.submit(dsec, "logs", "-f", run, home=tmp_path, **environment)
        time.sleep(6)
        log("dsec.rank-1", "was there before", 15)
        ended = {"state": {"type": "CANCELLED"}, "force": True}
        api.write("POST", f"flow_runs/{run}/set_state", ended, at="test")
        printed = following.result(timeout=60).stdout.splitlines()
    texts = [line.split("INFO", 1)[1].strip() for line in printed]
    assert sorted(texts) == ["begins", "goes on", "rank-1: was there before"]


def test_up_on_a_pool_that_its_owner_edited_adds_what_is_new_and_keeps_the_edits(api: PrefectApi) -> None:
    pool = f"edited-{uuid4().hex[:8]}"
    template = default_template()
    for shipped in (template, template[SHIPPED]["shipped"]):
        del shipped["variables"]["properties"]["max_runtime"], shipped["job_configuration"]["max_runtime"]
    template["variables"]["properties"]["priority"]["default"] = 7
    assert provisioning.create_pool(api, pool=pool, template=template)
    notes: list[str] = []
    startup._pool(api, pool, note=notes.append)
    fields = api.get(f"work_pools/{pool}")["base_job_template"]["variables"]["properties"]
    assert "max_runtime" in fields
    assert fields["priority"]["default"] == 7
    startup._pool(api, pool, note=notes.append)
    assert notes == [
        f"work pool {pool}: its form was brought up to date, your edits kept",
        f"work pool {pool}: is there",
    ]
