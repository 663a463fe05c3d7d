"""What goes wrong between a reservation and its pods: answers lost, workers killed, the API server away, no rights."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_deployments.control_plane import plane
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.local.layout import order_to_json
from dsec_workers.clusters.protocol import Committed, Gone, LaunchOrder, Started
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.workers.clusters.kubernetes.conftest import AT, GRACE_SECONDS, MakeNodes, OpenCluster, order_on, until
from tests.workers.clusters.kubernetes.test_cluster import IN_NAME, jobs, pods, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_in_pods import flow
from tests.workers.clusters.kubernetes.test_outposts import TRAINS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", ["kube.job.create:error:1", "kube.job.create:lost:1", "kube.job.create:error:2",
                                   "kube.job.create:lost:2", "cluster.kubernetes.launch:lost:1",
                                   "kube.secret.create:error:1", "kube.secret.create:lost:1"])  # fmt: skip
async def test_a_launch_that_failed_or_whose_answer_was_lost_leaves_nothing_once_it_is_stopped(
    kubernetes_api: Api,
    namespace: str,
    make_nodes: MakeNodes,
    open_cluster: OpenCluster,
    fault: str,
    fresh_faults: Callable[[str], None],
) -> None:
    nodes = await make_nodes(3)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes)
    fresh_faults(fault)
    with pytest.raises(ClusterError, match="injected at"):
        await told.cluster.launch(order)
    fresh_faults("")
    await told.cluster.stop(order.key, 0.0)  # as a claim that is undone does
    if await told.cluster.adopt():
        await told.until(order.key, Gone)
        await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)
    again = order_on(nodes, gpus=8)
    await told.cluster.launch(again)
    await told.until(again.key, Started)


@pytest.fixture
def fresh_faults(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Arm a fault, with its visits counted from now."""

    def arm(fault: str) -> None:
        from dsec_blocks.gateways import faults

        faults._visits.clear()
        monkeypatch.setenv("DSEC_FAULT", fault)

    return arm


LAUNCHES = """
import asyncio, json, sys
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.local.layout import order_from_json

async def main(kubeconfig, namespace, order):
    api = await Api.connect(ClusterAccess(kubeconfig=kubeconfig))
    settings = KubernetesSettings(pool=namespace, namespace=namespace, has_outposts=False, upload_seconds=5)
    cluster = KubernetesCluster(api, settings, clock=SystemClock())
    await cluster.prepare()
    await cluster.launch(order_from_json(json.loads(order)))

asyncio.run(main(*sys.argv[1:]))
"""


def killed_while_launching(kubernetes: ControlPlane, namespace: str, order: LaunchOrder, fault: str) -> None:
    """A worker that is killed at `fault` while it launches `order`."""
    words = [sys.executable, "-c", LAUNCHES, kubernetes.kubeconfig, namespace, json.dumps(order_to_json(order))]
    done = subprocess.run(words, env={**os.environ, "DSEC_FAULT": fault}, capture_output=True, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("fault", ["kube.job.create:kill_after:1", "kube.job.create:kill_before:2",
                                   "kube.job.create:kill_after:3"])  # fmt: skip
async def test_a_worker_killed_while_it_creates_leaves_what_its_successor_completes(
    kubernetes: ControlPlane, kubernetes_api: Api, namespace: str, make_nodes: MakeNodes,
    open_cluster: OpenCluster, fault: str,
) -> None:  # fmt: skip
    nodes = await make_nodes(3)
    order = order_on(nodes)
    await asyncio.to_thread(killed_while_launching, kubernetes, namespace, order, fault)
    assert 1 <= len(await jobs(kubernetes_api, namespace)) <= 3
    successor = await open_cluster(nodes, **IN_NAME)
    assert [gang.key for gang in await successor.cluster.adopt()] == [order.key]
    await successor.cluster.launch(order)
    await successor.until(order.key, Started)
    assert len(await pods(kubernetes_api, namespace)) == len(await jobs(kubernetes_api, namespace)) == 3


async def test_a_notice_reaches_its_gang_while_the_api_server_is_away(
    kubernetes_home: Path, process_nodes: ProcessNodes, namespace: str, open_cluster: OpenCluster, tmp_path: Path
) -> None:
    process_nodes.add(f"{namespace}-a", gpus=1)
    told = await open_cluster([f"{namespace}-a"])
    order = flow(order_on([f"{namespace}-a"]), tmp_path, TRAINS, STORE=str(tmp_path / "store"))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    clock = SystemClock()
    await asyncio.to_thread(plane.stop_part, kubernetes_home, "kube-apiserver", clock=clock)
    try:
        deadline = clock.now() + GRACE_SECONDS
        notice = Notice(kind=NoticeKind.EVICT, reason="a test needs the room", deadline=deadline, attempt=1)
        await told.cluster.notify(order.key, notice)
        await told.until(order.key, Committed)
        assert "DevicesReleased" not in told.kinds(order.key), "nobody can know that the pod has ended"
    finally:
        await asyncio.to_thread(plane.start, kubernetes_home, clock=clock)
    gone = await told.until(order.key, Gone)
    assert (gone.notice, gone.start_failure) == ("evict", None)


async def test_an_account_without_rights_is_told_which_verb_on_what_and_how_to_grant_it(
    kubernetes: ControlPlane, kubernetes_api: Api, namespace: str, tmp_path: Path
) -> None:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await kubernetes_api.create(account, request, at=AT))["status"]["token"]
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["users"][0]["user"]["token"] = token
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    api = await Api.connect(ClusterAccess(kubeconfig=str(tmp_path / "kubeconfig")))
    cluster = KubernetesCluster(api, KubernetesSettings(pool=namespace, namespace=namespace), clock=SystemClock())
    with pytest.raises(ClusterError) as refused:
        await cluster.prepare()
    assert "this account may not list,watch nodes" in str(refused.value)
    assert "kubectl create clusterrole dsec-extra --verb=list,watch --resource=nodes" in str(refused.value)
    assert token not in str(refused.value)
    await cluster.close()


RIGHTS = {
    "create jobs.batch": {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]},
    "list,watch limitranges": {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list", "watch"]},
    "list,watch resourcequotas": {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list", "watch"]},
    "get,create,patch secrets": {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]},
}


@pytest.mark.parametrize("lacking", RIGHTS)
async def test_one_right_that_is_lacking_is_named_with_the_namespace_and_how_to_grant_it(
    kubernetes: ControlPlane, kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, tmp_path: Path, lacking: str
) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    read = {"apiGroups": ["", "batch"], "resources": ["nodes", "pods", "jobs"], "verbs": ["get", "list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    own = [rule for name, rule in RIGHTS.items() if name != lacking]
    for kind, path, rules in (("ClusterRole", rbac, [read]), ("Role", f"{rbac}/namespaces/{namespace}", own)):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": namespace}
        await kubernetes_api.create(f"{path}/{kind.lower()}s", {"metadata": {"name": namespace}, "rules": rules}, at=AT)
        binding = {"metadata": {"name": namespace}, "roleRef": reference, "subjects": [subject]}
        await kubernetes_api.create(f"{path}/{kind.lower()}bindings", binding, at=AT)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    tokens = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["users"][0]["user"]["token"] = (await kubernetes_api.create(tokens, request, at=AT))["status"]["token"]
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    order = order_on(await make_nodes(1))

    async def complaint() -> str:
        api = await Api.connect(ClusterAccess(kubeconfig=str(tmp_path / "kubeconfig")))
        settings = KubernetesSettings(pool=namespace, namespace=namespace, has_outposts=False)
        cluster = KubernetesCluster(api, settings, clock=SystemClock())
        try:
            await cluster.prepare()
            await cluster.launch(order)
        except ClusterError as refused:
            return str(refused)
        finally:
            await cluster.close()
        raise AssertionError("it had all rights")

    async def is_told() -> bool:  # the authoriser hears of the other rights by a watch
        return f"this account may not {lacking} in namespace {namespace} (" in await complaint()

    try:
        await until(is_told)
        verbs, _, resource = lacking.partition(" ")
        how = f"kubectl create role dsec-extra --verb={verbs} --resource={resource} --namespace {namespace}, bound"
        assert how in await complaint()
        assert not await jobs(kubernetes_api, namespace)
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            await kubernetes_api.delete(f"{rbac}/{kind}/{namespace}", at=AT)
