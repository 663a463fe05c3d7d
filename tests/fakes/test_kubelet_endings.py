"""How pods leave: by deletion with its grace, refused, expired, with their node, or with the stand-in itself."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane import plane
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api, Object
from tests.fakes.kubelet import node_object
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.fakes.kubelet.times import now
from tests.fixtures.pods import SECONDS, Pods, ended, shell, until, written

pytestmark = pytest.mark.slow
FOREVER = "while :; do sleep 0.1; done"


@pytest_asyncio.fixture
async def pods(kubernetes_api: Api, namespace: str) -> AsyncIterator[Pods]:
    yield Pods(kubernetes_api, namespace)


async def until_gone(pid: int) -> None:
    def is_gone() -> bool:
        found = processes.sighting(pid)
        return found is None or found.is_zombie

    await until(is_gone, f"the end of process {pid}")


async def test_sigterm_reaches_pid_1_only_and_the_pod_goes_when_it_has_left(
    process_nodes: ProcessNodes, pods: Pods, tmp_path: Path
) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    script = f"""
      (trap 'echo child >> $OUT' TERM; {FOREVER}) &
      trap 'echo first >> $OUT; exit 5' TERM
      echo up; {FOREVER}
    """
    env = {"env": [{"name": "OUT", "value": str(tmp_path / "said")}]}
    manifest = shell("p", script, node="n1", container=env, terminationGracePeriodSeconds=60)
    manifest["metadata"]["finalizers"] = ["test.dsec.io/keep"]  # so that its last status can be read
    await pods.create(manifest)
    running = await pods.phase("p", "Running")
    await pods.said("p", "up")
    await pods.delete("p")
    done = await pods.phase("p", "Failed")
    assert ended(done)["exitCode"] == 5
    assert (tmp_path / "said").read_text() == "first\n"
    assert process_nodes.pod(running["metadata"]["uid"]).pids == {"main": None}
    await pods.api.merge(f"{pods.path}/p", {"metadata": {"finalizers": None}}, at="test.finalizer")
    await pods.gone("p")


async def test_who_does_not_leave_in_its_grace_is_killed_with_its_children(
    process_nodes: ProcessNodes, pods: Pods, tmp_path: Path
) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    script = f"trap '' TERM; setsid sh -c 'echo $$$$ > {tmp_path}/child; {FOREVER}' & {FOREVER}"
    await pods.create(shell("p", script, node="n1", terminationGracePeriodSeconds=1))
    uid = (await pods.phase("p", "Running"))["metadata"]["uid"]
    await until(lambda: written(tmp_path / "child"), "the child's pid")
    first = process_nodes.pod(uid).pids["main"]
    assert first is not None
    await pods.delete("p")
    await pods.gone("p")
    await until_gone(first)
    await until_gone(int((tmp_path / "child").read_text()))


async def test_pid_1_without_a_handler_does_not_get_sigterm(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    manifest = shell("p", "exec sleep 1000", node="n1", terminationGracePeriodSeconds=1)
    manifest["metadata"]["finalizers"] = ["test.dsec.io/keep"]
    await pods.create(manifest)
    await pods.phase("p", "Running")
    await pods.delete("p")
    assert ended(await pods.phase("p", "Failed"))["exitCode"] == 137
    await pods.api.merge(f"{pods.path}/p", {"metadata": {"finalizers": None}}, at="test.finalizer")
    await pods.gone("p")


async def test_a_process_that_outlives_pid_1_is_killed_with_it(
    process_nodes: ProcessNodes, pods: Pods, tmp_path: Path
) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    script = f"setsid sh -c '{FOREVER}' & echo $! > {tmp_path}/child"
    await pods.create(shell("p", script, node="n1"))
    await pods.phase("p", "Succeeded")
    await until_gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("reason", ["OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "NodeShutdown"])
async def test_a_node_can_be_told_to_refuse_the_next_pod(process_nodes: ProcessNodes, pods: Pods, reason: str) -> None:
    process_nodes.add("n1")
    process_nodes.reject_next("n1", reason=reason, message="no")
    await pods.create(shell("p", "true", node="n1"))
    refused = (await pods.phase("p", "Failed"))["status"]
    assert (refused["reason"], refused["message"]) == (reason, "no")
    await pods.create(shell("q", "true", node="n1"))
    await pods.phase("q", "Succeeded")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "another"}}, "NodeAffinity"),
        ({"container": {"resources": {"requests": {"cpu": "65"}}}}, "OutOfcpu"),
        ({"container": {"resources": {"limits": {"nvidia.com/gpu": "9"}}}}, "OutOfnvidia.com/gpu"),
    ],
)
async def test_a_pod_that_does_not_fit_is_refused(
    process_nodes: ProcessNodes, pods: Pods, spec: dict[str, Any], reason: str
) -> None:
    process_nodes.add("n1")
    await pods.create(shell("p", "true", node="n1", **spec))
    refused = await pods.phase("p", "Failed")
    assert refused["status"]["reason"] == reason
    assert "containerStatuses" not in refused["status"]


async def test_a_pod_is_stopped_when_its_deadline_is_over(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    await pods.create(shell("p", FOREVER, node="n1", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1))
    assert (await pods.phase("p", "Failed"))["status"]["reason"] == "DeadlineExceeded"


async def test_an_image_that_cannot_be_pulled_keeps_its_pod_waiting(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    process_nodes.hold_images("n1")
    await pods.create(shell("p", "true", node="n1"), shell("q", "true", node="n1"))

    def waits(reason: str) -> Callable[[Object], bool]:
        return lambda found: reason in str(found["status"].get("containerStatuses"))

    await pods.until("p", waits("ErrImagePull"))
    assert (await pods.until("p", waits("ImagePullBackOff")))["status"]["phase"] == "Pending"
    await pods.delete("q")
    await pods.gone("q")
    process_nodes.release_images("n1")
    await pods.phase("p", "Succeeded")


async def test_a_silent_node_s_pods_run_on_and_are_told_of_when_it_is_back(
    process_nodes: ProcessNodes, pods: Pods, tmp_path: Path
) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    script = f"while ! test -e {tmp_path}/go; do sleep 0.05; done; touch {tmp_path}/went; exit 4"
    await pods.create(shell("p", script, node="n1"), shell("q", FOREVER, node="n1"))
    await pods.phase("p", "Running")
    await pods.phase("q", "Running")
    process_nodes.silence("n1", at_once=True)
    await node_until(pods.api, "n1", "Unknown", "node.kubernetes.io/unreachable")
    await pods.delete("q")
    (tmp_path / "go").touch()
    await until((tmp_path / "went").exists, "p has gone on")
    await asyncio.sleep(0.5)  # time in which it could say so, did it speak
    silent = [await pods.get(name) for name in "pq"]
    assert [found and found["status"]["phase"] for found in silent] == ["Running", "Running"]
    process_nodes.revive("n1")
    assert ended(await pods.phase("p", "Failed"))["exitCode"] == 4
    await pods.gone("q")
    await node_until(pods.api, "n1", "True", None)


async def test_a_node_that_is_not_well_is_tainted_and_its_pods_run_on(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    await pods.create(shell("p", FOREVER, node="n1"))
    await pods.phase("p", "Running")
    process_nodes.unwell("n1")
    await node_until(pods.api, "n1", "False", "node.kubernetes.io/not-ready")
    process_nodes.revive("n1")
    await node_until(pods.api, "n1", "True", None)
    assert (await pods.phase("p", "Running"))["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_node_that_was_given_up_while_nobody_could_be_heard_says_that_it_is_ready(
    process_nodes: ProcessNodes, pods: Pods
) -> None:
    process_nodes.add("n1", heartbeat_seconds=0.5)
    given_up = {"status": {"conditions": node_object.unknown(now=now())}}
    await pods.api.merge("/api/v1/nodes/n1/status", given_up, at="test.node")
    await node_until(pods.api, "n1", "True", None)


async def test_pods_die_with_their_node_and_its_boot_says_so(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1", gpus=1)
    await pods.create(shell("p", FOREVER, node="n1", gpus=1))
    first = process_nodes.pod((await pods.phase("p", "Running"))["metadata"]["uid"]).pids["main"]
    assert first is not None
    process_nodes.kill("n1", at_once=True)
    assert processes.sighting(first) is None
    assert (await pods.phase("p", "Running"))["status"]["phase"] == "Running"
    process_nodes.revive("n1")
    assert ended(await pods.phase("p", "Failed"))["reason"] == "ContainerStatusUnknown"
    await pods.create(shell("q", "true", node="n1", gpus=1))
    await pods.phase("q", "Succeeded")


@pytest.mark.long
async def test_what_happens_while_the_api_server_is_away_is_told_when_it_is_back(
    process_nodes: ProcessNodes, kubernetes_home: Path, pods: Pods, tmp_path: Path
) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    script = f"while ! test -e {tmp_path}/go; do sleep 0.05; done; touch {tmp_path}/went; exit 3"
    await pods.create(shell("p", script, node="n1"), shell("q", FOREVER, node="n1"))
    await pods.phase("p", "Running")
    uid = (await pods.phase("q", "Running"))["metadata"]["uid"]
    clock = SystemClock()
    plane.stop_part(kubernetes_home, "kube-apiserver", clock=clock)
    try:
        (tmp_path / "go").touch()
        await until((tmp_path / "went").exists, "p has gone on")
    finally:
        plane.start(kubernetes_home, clock=clock)
    assert ended(await pods.phase("p", "Failed"))["exitCode"] == 3
    assert process_nodes.pod(uid).pids["main"] is not None
    await pods.delete("q")
    await pods.gone("q")


@pytest.mark.parametrize("half", ["runtime", "kubelet"])
async def test_nothing_is_left_behind_when_the_stand_in_is_killed(
    kubernetes: ControlPlane, pods: Pods, tmp_path: Path, half: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="dsec-nodes-") as folder:
        nodes = ProcessNodes(kubernetes.kubeconfig, Path(folder))
        with nodes:
            nodes.add("doomed", host_paths=[str(tmp_path)])
            script = f"setsid sh -c 'echo $$$$ > {tmp_path}/child; {FOREVER}' & {FOREVER}"
            await pods.create(shell("p", script, node="doomed"))
            await pods.phase("p", "Running")
            await until(lambda: written(tmp_path / "child"), "the child's pid")
            table = processes.descendants([nodes.pid])
            kubelet = next(
                row.pid
                for row in table
                if row.parent == nodes.pid and "kubelet" in str(processes.command_line(row.pid))
            )
            os.kill(nodes.pid if half == "runtime" else kubelet, signal.SIGKILL)
            for row in table:
                await until_gone(row.pid)
            await until_gone(int((tmp_path / "child").read_text()))
            nodes.abandon()
        with ProcessNodes(kubernetes.kubeconfig, Path(folder)) as successor:
            successor.add("doomed")
            assert ended(await pods.phase("p", "Failed"))["reason"] == "ContainerStatusUnknown"


async def node_until(api: Api, name: str, ready: str, taint: str | None) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        node = await api.get(f"/api/v1/nodes/{name}")
        status = next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")
        taints = {t["key"] for t in node["spec"].get("taints") or ()}
        if status == ready and (taint in taints if taint else not taints):
            return
        assert time.monotonic() < deadline, f"{name}: Ready={status}, taints {taints}"
        await asyncio.sleep(0.05)
