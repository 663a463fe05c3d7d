"""Every point of a command is passed by a command here, struck elsewhere, or excused in this one place."""

import json
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from dsec_blocks.checkpoints import open_store
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.faults import ENV_FAULT_LOG
from dsec_deployments import provisioning
from dsec_deployments.prefect_api import PrefectApi
from dsec_workers.form import default_template
from dsec_workers.simulation.clusters import parse_cluster
from tests.blocks.checkpoints.ranks import Ranks
from tests.crash import cases
from tests.deployments.test_command import dsec
from tests.fixtures.ledgers import new_ledger
from tests.fixtures.prefect import PrefectServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
EXCUSED = {
    "up.": "struck one by one in test_commands",
    "down.": "struck one by one in test_commands",
    "demo.": "a demonstration begins anew in a directory of its own; its claims are checked by `make demo`",
    "kube.": "building and starting a control plane: tests/deployments/control_plane, where there is Go",
    "deploy.kubernetes.": "needs a control plane: tests/deployments/kubernetes",
    "cluster.supervisor.kill": "only a supervisor that does not answer is killed: tests/workers/clusters",
    "cluster.sweep.kill": "only a fork-server that does not answer is killed: tests/workers/clusters",
    "checkpoint.selftest.": "no command but the block's own test when it is saved: tests/blocks/checkpoints",
    "ledger.migrate": "struck in test_commands",
    "ledger.backup.": "struck in test_commands; copy and restore need PostgreSQL: tests/blocks/ledger/test_backup.py",
    "ledger.restore": "needs PostgreSQL: tests/blocks/ledger/test_backup.py",
}
"""By the beginning of their names, each with where it is looked at instead."""
RUN = "11111111-2222-3333-4444-555555555555"
FLOW = "from prefect import flow\n\n@flow\ndef hello():\n    pass\n"


def _wanted() -> set[str]:
    points = {name for name, scope in cases.scopes().items() if scope == "command"}
    return {name for name in points if not name.startswith(tuple(EXCUSED))}


def test_an_excuse_that_excuses_nothing_is_not_kept() -> None:
    points = [name for name, scope in cases.scopes().items() if scope == "command"]
    assert not [prefix for prefix in EXCUSED if not any(name.startswith(prefix) for name in points)]


def test_every_point_of_a_command_is_passed_by_a_command(prefect_server: PrefectServer, tmp_path: Path) -> None:
    pool, log = f"pool-{uuid4().hex[:8]}", tmp_path / "passed"
    api = PrefectApi(prefect_server.api_url)
    provisioning.create_pool(api, pool=pool, template=default_template())
    _prepare(tmp_path, pool)
    store = open_store(tmp_path / "store")
    ranks = Ranks(store, tmp_path, run=RUN)
    ranks.restore()
    for step in (10, 20):
        ranks.save(step, lambda _: {"weights": np.zeros(3), "epoch": 1})
    (tmp_path / "hello.py").write_text(FLOW)
    (tmp_path / "jobs.csv").write_text("id,submit,duration,gpus,team,priority\na,0,60,1,default,0\n")
    environment = {"DSEC_POOL": pool, "PREFECT_API_URL": api.url, ENV_FAULT_LOG: str(log)}

    def run(*words: str) -> None:
        done = dsec(*words, home=tmp_path, **environment)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    run("team", "add", "vision", "--quota", "1")
    run("team", "set", "vision", "--quota", "2")
    run("team", "remove", "vision")
    run("freeze", "--why", "a test")
    policy = dsec("policy", "show", "--shipped", home=tmp_path, **environment).stdout
    (tmp_path / "policy.yaml").write_text(policy)
    run("policy", "set", "policy.yaml", "--why", "a test")
    run("deploy", "hello.py:hello")
    deployment = api.get("deployments/name/hello/hello")
    path = f"deployments/{deployment['id']}/create_flow_run"
    created = api.write("POST", path, {"state": {"type": "SCHEDULED"}}, at="test")
    run("cancel", str(created["id"]))
    run("incident", "capture", "odd.json")
    run("simulate", "jobs.csv", "--cluster", "1x8", "-o", "out")
    run("checkpoint", "export", RUN, "exported", "--store", store.url)
    run("checkpoint", "rm", RUN, "--step", "10", "--store", store.url)
    run("checkpoint", "rm", RUN, "--all", "--store", store.url)
    killed = dsec("worker", home=tmp_path, **{**environment, "DSEC_FAULT": "worker.execute:kill_before"})
    assert killed.returncode == -9

    passed = set(log.read_text().split())
    assert not _wanted() - passed, f"passed were {json.dumps(sorted(passed))}"


def _prepare(home: Path, pool: str) -> None:
    """A ledger in which a worker has said what there is."""
    ledger = new_ledger(home / "ledger.db", clock=SystemClock())
    fence = ledger.take_lease(pool, "a worker", seen=None)
    assert fence is not None
    ledger.put_nodes(fence, parse_cluster("1x4@declared"))
    ledger.resign(fence)
    ledger.close()
