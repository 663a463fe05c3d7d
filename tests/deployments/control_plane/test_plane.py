"""The real control plane: started, found again, parts restarted, stopped with nothing left."""

import os
from pathlib import Path

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments import background
from dsec_deployments.control_plane import plane, simulated_nodes
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from tests.fixtures.kubernetes import skip_without_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def parts(home: Path) -> dict[str, int]:
    found = {name: background.find(home, name) for name in plane._ORDER}
    return {name: part.process.pid for name, part in found.items() if part is not None}


async def test_a_started_plane_runs_pods_on_simulated_nodes(kubernetes_api: Api, namespace: str) -> None:
    await kubernetes_api.create("/api/v1/nodes", simulated_nodes.manifest("sim-0"), at="test.kube")
    pod = {
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "sim-0",
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        },
    }
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await kubernetes_api.create(pods, pod, at="test.kube")
    version = "0"
    async for _, seen in kubernetes_api.watch(pods, since=version):
        if seen.get("status", {}).get("phase") == "Running":
            break
    await kubernetes_api.delete(f"{pods}/p", at="test.kube")
    await kubernetes_api.delete("/api/v1/nodes/sim-0", at="test.kube")


def test_a_second_start_finds_what_runs(kubernetes_home: Path) -> None:
    before = parts(kubernetes_home)
    assert sorted(before) == sorted(plane._ORDER)
    plane.start(kubernetes_home, clock=SystemClock())
    assert parts(kubernetes_home) == before


def test_the_api_server_calls_itself_by_its_version(kubernetes_home: Path) -> None:
    import json
    import ssl
    import urllib.request

    from dsec_deployments.control_plane.binaries import KUBERNETES_VERSION

    found = plane.running(kubernetes_home)
    assert found is not None
    request = urllib.request.Request(f"{found.server}/version", headers={"Authorization": f"Bearer {found.token}"})
    with urllib.request.urlopen(request, context=ssl._create_unverified_context()) as answer:
        assert json.loads(answer.read())["gitVersion"] == KUBERNETES_VERSION


async def test_a_part_that_was_stopped_comes_back_with_the_same_data(tmp_path: Path) -> None:
    skip_without_programs()
    clock = SystemClock()
    try:
        first = plane.start(tmp_path, clock=clock)
        async with await Api.connect(ClusterAccess(kubeconfig=first.kubeconfig)) as api:
            await api.create("/api/v1/namespaces", {"metadata": {"name": "kept"}}, at="test.kube")
        assert plane.stop_part(tmp_path, "kube-apiserver", clock=clock)
        assert plane.running(tmp_path) is None
        second = plane.start(tmp_path, clock=clock)
        assert second == first
        async with await Api.connect(ClusterAccess(kubeconfig=second.kubeconfig)) as api:
            assert (await api.get("/api/v1/namespaces/kept"))["metadata"]["name"] == "kept"
    finally:
        pids = parts(tmp_path)
        assert plane.stop(tmp_path, clock=clock, purge=True) == len(pids)
    assert not (tmp_path / "control-plane").exists()
    own = {row.pid for row in processes.descendants([os.getpid()])}
    assert not own & set(pids.values()), "a part outlived the stop"
