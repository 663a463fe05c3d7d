"""`dsec up --kubernetes simulated`: a real control plane, nodes whose pods are processes, and a pool on them."""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.gateways import processes
from dsec_deployments import background
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from tests.deployments.test_command import dsec, one_line
from tests.deployments.test_up_and_down import FLOW, attempt_of, eventually, gangs, start_lasting
from tests.fixtures.kubernetes import skip_without_programs
from tests.fixtures.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_SECONDS = 180.0
UP = ("up", "--kubernetes", "simulated", "--nodes", "2", "--gpus", "2", "--gpu-model", "H100")


def test_another_kind_of_cluster_is_refused_with_what_there_is(tmp_path: Path) -> None:
    done = dsec("up", "--kubernetes", "gke", home=tmp_path)
    assert done.returncode == 2
    assert "--kubernetes: 'gke' is neither simulated" in one_line(done)
    assert "dsec deploy kubernetes" in one_line(done)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [UP, ("demo", "--kubernetes")], ids=["up", "demo"])
def test_without_the_programs_and_without_go_one_line_says_so_and_nothing_runs(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    bare = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "KUBEBUILDER_ASSETS": ""}
    done = dsec(*command, home=tmp_path, **bare)
    assert done.returncode == 3
    last = one_line(done)
    assert "kube-apiserver" in last and "there is no Go to build with" in last and "Install Go" in last
    assert not list(tmp_path.glob("run/*")) and not (tmp_path / ".dsec").exists()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a pool that is up, its gangs in pods."""
    skip_without_programs()
    directory = tmp_path_factory.mktemp("kube")
    (directory / "lasting.py").write_text(FLOW.replace("20s", "60s"))
    try:
        done = dsec(*UP, "--port", str(free_port()), home=directory, seconds=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        assert "kubectl get pods" in done.stdout
        yield directory
    finally:
        dsec("down", home=directory, seconds=PATIENCE_SECONDS)


def parts(home: Path) -> dict[str, int]:
    """Every process that is recorded, by its name."""
    names = [path.stem for path in (home / "run").glob("*.json")]
    found = {name: background.find(home, name) for name in names}
    return {name: part.process.pid for name, part in found.items() if part is not None}


def all_of(home: Path) -> list[int]:
    """The recorded processes with all that is below them, pods included."""
    table = list(processes.processes())
    own = list(parts(home).values())
    return sorted({*own, *(row.pid for row in processes.descendants(own, among=table))})


def alive(pids: list[int]) -> list[list[str]]:
    """The command lines of those that run still; ended ones that nobody has waited for yet do not."""
    rows = [row for pid in pids if (row := processes.sighting(pid)) is not None and not row.is_zombie]
    return [processes.command_line(row.pid) for row in rows]


def pods_of(home: Path) -> list[tuple[str, str]]:
    """Node and phase of each pod of a gang."""

    async def ask() -> list[tuple[str, str]]:
        kubeconfig = home / "control-plane" / "admin.kubeconfig"
        async with await Api.connect(ClusterAccess(kubeconfig=str(kubeconfig))) as api:
            found, _ = await api.list("/api/v1/pods", labels="dsec.io/pool=dsec")
        return [(pod["spec"]["nodeName"], pod["status"]["phase"]) for pod in found]

    return asyncio.run(ask())


def test_up_again_finds_everything_there(home: Path) -> None:
    before = parts(home)
    assert {"kube-apiserver", "etcd", "process-nodes", "worker", "agent", "prefect-server"} <= set(before)
    done = dsec("up", home=home, seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert parts(home) == before


def test_status_and_pool_show_the_cluster_and_its_nodes(home: Path) -> None:
    done = dsec("status", "--json", home=home, seconds=PATIENCE_SECONDS)
    told = {part["part"]: part for part in json.loads(done.stdout)}
    assert done.returncode == 0, told
    assert told["Kubernetes"]["ok"] and told["Kubernetes"]["detail"].startswith("https://127.0.0.1:")
    assert told["devices"]["detail"] == "2 nodes, 4 devices"
    cards = json.loads(dsec("pool", "--json", home=home, seconds=PATIENCE_SECONDS).stdout)
    assert [(card["node"], card["index"], card["model"]) for card in cards] == [
        (node, index, "H100") for node in ("node-0", "node-1") for index in (0, 1)
    ]
    assert all(card["schedulable"] for card in cards)


def test_gangs_cannot_become_processes_while_a_worker_runs_them_in_pods(home: Path) -> None:
    done = dsec("up", "--kubernetes", "off", home=home, seconds=PATIENCE_SECONDS)
    assert done.returncode != 0
    assert "runs its gangs in pods; `dsec down` before" in done.stderr.strip().splitlines()[-1]


def start_first(home: Path) -> None:
    deployed = dsec("deploy", "lasting.py", home=home, seconds=PATIENCE_SECONDS)
    assert deployed.returncode == 0, deployed.stderr
    start_lasting(home, "first", seconds=PATIENCE_SECONDS)


def test_a_run_is_a_pod_that_checkpoints_before_down_and_goes_on_after_up_with_fewer_nodes(home: Path) -> None:
    start_first(home)
    ((node, phase),) = pods_of(home)
    assert node in ("node-0", "node-1") and phase == "Running"
    eventually(lambda: list((home / "checkpoints").rglob("*")), PATIENCE_SECONDS)
    everything = all_of(home)
    assert len(everything) > len(parts(home))
    done = dsec("down", "--evict", home=home, seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "every gang has checkpointed" in done.stderr and "process nodes: stopped" in done.stderr
    assert gangs(home)["first"] == ("waiting", 1)
    assert alive(everything) == []
    goes_on_with_one_node(home, after=1)


# Both halves of it, which cost 20 s of processor, are in `make test` too: the one above leaves no process and comes up
# with fewer nodes, and test_up_and_down resumes what `dsec down` interrupted without a checkpoint.
@pytest.mark.long
def test_down_without_a_checkpoint_leaves_no_process_and_the_next_up_resumes_the_run(home: Path) -> None:
    if "first" not in gangs(home):  # this test alone
        start_first(home)
    everything, before = all_of(home), attempt_of(home, "first")
    done = dsec("down", home=home, seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "process nodes: stopped" in done.stderr
    assert alive(everything) == []
    goes_on_with_one_node(home, after=before)


def goes_on_with_one_node(home: Path, *, after: int) -> None:
    """Bring it up with one node, on which the run resumes in an attempt `after` the one that was interrupted."""
    again = dsec("up", "--nodes", "1", home=home, seconds=PATIENCE_SECONDS)
    assert again.returncode == 0, again.stderr
    eventually(lambda: [(node, phase) for node, phase in pods_of(home) if phase == "Running"], PATIENCE_SECONDS)
    eventually(lambda: attempt_of(home, "first") > after and gangs(home)["first"][0] == "running", PATIENCE_SECONDS)
    assert {
        card["node"] for card in json.loads(dsec("pool", "--json", home=home, seconds=PATIENCE_SECONDS).stdout)
    } == {"node-0"}


def test_purge_removes_everything(home: Path) -> None:
    everything = all_of(home)
    done = dsec("down", "--purge", "--yes", home=home, seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert alive(everything) == []
    assert not home.exists()
    home.mkdir()


def test_down_stops_a_cluster_whose_pool_could_not_be_brought_up(tmp_path: Path) -> None:
    skip_without_programs()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = dsec(*UP, "--port", port, home=tmp_path, seconds=PATIENCE_SECONDS)
    assert done.returncode == 3 and f"port {port} is in use" in done.stderr.strip().splitlines()[-1]
    everything = all_of(tmp_path)
    assert "kube-apiserver" in parts(tmp_path)
    done = dsec("down", home=tmp_path, seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert alive(everything) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_demo_in_pods_keeps_every_claim_and_leaves_no_process() -> None:
    skip_without_programs()
    command = [sys.executable, "-m", "dsec_deployments.cli", "demo", "--kubernetes"]
    with tempfile.TemporaryDirectory(prefix="dsec-") as name:  # short: sockets lie below it
        home = Path(name) / ".dsec" / "demo-kube"
        done = subprocess.run(command, capture_output=True, text=True, cwd=name, timeout=1100, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        told = json.loads((home / "claims.json").read_text())["claims"]
        assert all(claim["held"] for claim in told)
        assert any("loss equals the uninterrupted run" in claim["name"] for claim in told)
        assert parts(home) == {}
