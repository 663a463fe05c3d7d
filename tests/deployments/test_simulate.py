"""`dsec simulate` and `dsec what-if` as a user meets them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.incidents import capture
from dsec_workers.simulation.clusters import parse_cluster
from tests.deployments.test_command import dsec, one_line
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger

TRACE = """id,submit,duration,gpus,team,priority
long,0,3600,8,vision,0
short,10,600,8,speech,0
urgent,20,100,4,vision,50
wide,30,4000,16,speech,0
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.slow
def test_a_trace_is_replayed_into_a_table_a_report_and_figures(tmp_path: Path, trace: Path) -> None:
    words = ["simulate", str(trace), "--cluster", "2x8", "--compare", "fifo,tiresias-like", "-o", "out"]
    done = dsec(*words, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == ["dsec", "fifo", "tiresias-like"]
    told = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert {name: row["finished"] for name, row in told["policies"].items()} == {
        "dsec": 4, "fifo": 4, "tiresias-like": 4
    }  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text()
    for title in ("How much of the cluster was held", "How many waited", "by team", "by size", "Who gave way",
                  "fragmented", "What every node did"):  # fmt: skip
        assert title in page
    assert page.count('class="plotly-graph-div"') == 7
    assert "<script src=" not in page
    assert "<link" not in page

    # Given again, the same figures: no clock, no dice.
    again = dsec(*words, "--json", home=tmp_path)
    assert json.loads(again.stdout) == told


@pytest.mark.slow
def test_a_policy_that_resizes_shrinks_and_grows_the_elastic_jobs_of_a_trace(tmp_path: Path) -> None:
    rows = "e,0,1000,2,4,1,0\nurgent,400,100,1,4,,50\n"
    (tmp_path / "jobs.csv").write_text("id,submit,duration,nodes,gpus_per_node,min_nodes,priority\n" + rows)
    (tmp_path / "policy.yaml").write_text("resizing: true\nmove_interval_seconds: 200\nmin_run_seconds: 100\n")
    words = ["simulate", "jobs.csv", "--cluster", "2x4", "--policy", "policy.yaml", "--compare", "fifo", "-o", "out"]
    done = dsec(*words, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dsec resized 2 times (counted among the evicted), for 0.1 GPU-h" in " ".join(done.stdout.split())
    told = json.loads((tmp_path / "out" / "simulation.json").read_text())["policies"]
    assert {name: row["resizes"] for name, row in told.items()} == {"dsec": 2, "fifo": 0}
    assert told["dsec"]["resize_device_hours"] == 480 / 3600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.csv", "--cluster", "2x8"], "none.csv: cannot be read"),
        (["jobs.csv"], "--cluster is missing"),
        (["jobs.csv", "--cluster", "many"], "neither NODESxGPUS such as 58x8"),
        (["jobs.csv", "--cluster", "2x8", "--compare", "slurm"], "'slurm' is not a scheduler to compare with"),
        (["jobs.csv", "--cluster", "2x8", "--policy", "no.yaml"], "--policy: no.yaml cannot be read"),
        (["jobs.csv", "--cluster", "2x8", "--checkpoint", "-3"], "checkpoint_seconds: -3.0 is no duration"),
        (["jobs.csv", "--cluster", "2x8", "--fail", "node-9@1+2"], "there is no node 'node-9'"),
        (["jobs.csv", "--cluster", "2x8", "--fail", "node-1"], "is not NODE@START+SECONDS"),
        (["jobs.csv", "--cluster", "2x8", "-o", "jobs.csv"], "--output: jobs.csv cannot be written"),
    ],
)
def test_every_mistake_is_one_line(tmp_path: Path, trace: Path, words: list[str], says: str) -> None:
    done = dsec("simulate", *words, home=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_replay_without_a_traceback_and_leaves_no_file(tmp_path: Path) -> None:
    many = "\n".join(f"{n},{500 + n % 977},{1 + n % 8}" for n in range(20_000))
    (tmp_path / "many.csv").write_text("submit,duration,gpus\n" + many)
    words = [sys.executable, "-m", "dsec_deployments.cli", "simulate", "many.csv", "--cluster", "4x8", "-o", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        time.sleep(4.0)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()


def _pool(home: Path) -> Ledger:
    """A pool of two nodes with four GPUs; on one a gang runs."""
    ledger = new_ledger(home / "ledger.db", clock=ManualClock(time.time()))
    fence = ledger.take_lease("gpus", "test", seen=None)
    assert fence is not None
    ledger.put_nodes(fence, parse_cluster("2x4@H100"))
    ledger.put_team("gpus", Team(name="ml", nominal_devices=8))
    now = time.time()
    gang = Gang(
        run_id="11111111-aaaa", name="steady-otter", pool="gpus", team="ml", request=GangRequest(devices_per_node=4),
        state=GangState.WAITING, submitted_at=now - 9000, eligible_at=now - 9000,
    )  # fmt: skip
    ledger.enqueue(fence, [gang])
    where = Placement(members=(MemberPlacement(node="node-0", devices=tuple(f"node-0/{n}" for n in range(4))),))
    admitted = ledger.admit(fence, gang.run_id, where, expires_at=now + 60)
    ledger.claimed(fence, gang.run_id, admitted.attempt, user_retries=None)
    ledger.started(fence, gang.run_id, admitted.attempt, now - 8000)
    return ledger


@pytest.mark.slow
def test_what_if_tells_when_where_and_who_has_to_make_room(tmp_path: Path) -> None:
    ledger = _pool(tmp_path)
    environment = {"DSEC_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}", "DSEC_POOL": "gpus"}
    free = dsec("what-if", "4", "--team", "ml", home=tmp_path, **environment)
    assert free.returncode == 0, free.stderr
    assert "now: it would start at once: fits in free devices" in free.stdout
    assert "on node-1: node-1/0, node-1/1, node-1/2, node-1/3" in free.stdout

    evicting = dsec("what-if", "2x4", "--team", "ml", "-s", "priority=50", home=tmp_path, **environment)
    assert "evicts steady-otter (11111111), at a cost of" in evicting.stdout

    waits = dsec("what-if", "2x4", "--team", "ml", "--add-nodes", "1", "--json", home=tmp_path, **environment)
    now, larger = json.loads(waits.stdout)["answers"]
    assert (now["starts"], now["reason_code"], now["position"]) == (False, "waits-for-capacity", 1)
    assert now["starts_in_seconds"] > 0
    assert larger["if"] == "with 1 more node like node-0"
    assert {member["node"] for member in larger["where"]} == {"added-1", "node-1"}

    (tmp_path / "request.yaml").write_text("nodes: 1\ndevices_per_node: 2\n")
    document = capture(ledger, "gpus", now=time.time(), by="test")
    (tmp_path / "incident.json").write_text(json.dumps(document))
    words = ["what-if", "request.yaml", "--team", "ml", "--incident", "incident.json"]
    captured = dsec(*words, home=tmp_path, DSEC_POOL="gpus")
    assert "it would start at once" in captured.stdout, captured.stderr
    ledger.close()

    replayed = dsec("simulate", "incident.json", "--json", "-o", "on", home=tmp_path)
    assert json.loads(replayed.stdout)["policies"]["dsec"]["finished"] == 1, replayed.stderr
    done = dsec("simulate", "ledger", "-o", "own", home=tmp_path, **environment)
    assert done.returncode == 2
    assert one_line(done) == "dsec: pool gpus has no run yet that held a device; there is nothing to replay"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["2x"], "'2x' is neither a shape (2x8)"),
        ([], "no request: give a shape"),
        (["4", "-s", "gpus=3"], "'gpus' is no part of a request"),
        (["4", "--team", "nobody"], "unknown team nobody; teams are"),
        (["no.yaml"], "no.yaml cannot be read"),
        (["4", "--incident", "no.json"], "no.json cannot be read"),
    ],
)
def test_every_mistake_of_what_if_is_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    _pool(tmp_path).close()
    environment = {"DSEC_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}", "DSEC_POOL": "gpus"}
    done = dsec("what-if", *words, home=tmp_path, **environment)
    assert done.returncode == 2
    assert says in one_line(done)
