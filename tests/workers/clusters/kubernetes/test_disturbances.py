"""What others do to a cluster while gangs run: an API server that refuses, nodes that go, pods that take places."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.errors import Forbidden, Overloaded
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import Committed, Gone, Progressed, Started
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.fixtures.pods import Pods, ended, shell
from tests.workers.clusters.kubernetes.conftest import (
    AT,
    MakeNodes,
    OpenCluster,
    Told,
    order_on,
    until,
)
from tests.workers.clusters.kubernetes.test_cluster import jobs, pods, pods_of, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_in_pods import flow
from tests.workers.clusters.kubernetes.test_outposts import TRAINS

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FLOW_CONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
WAITS = "run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@pytest_asyncio.fixture
async def account(kubernetes: ControlPlane, kubernetes_api: Api, namespace: str, tmp_path: Path) -> AsyncIterator[Api]:
    """A client that may do everything in this test's namespace, as an account of its own."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    binding = {"metadata": {"name": "admin"}, "roleRef": role, "subjects": [subject]}
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    await kubernetes_api.create(path, binding, at=AT)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    config = json.loads(Path(kubernetes.kubeconfig).read_text())
    config["users"][0]["user"]["token"] = (await kubernetes_api.create(token, request, at=AT))["status"]["token"]
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with await Api.connect(ClusterAccess(kubeconfig=str(tmp_path / "kubeconfig"))) as api:

        async def may_read() -> bool:
            try:
                await jobs(api, namespace)
            except Forbidden:  # the authoriser hears of the binding by a watch
                return False
            return True

        await until(may_read)
        yield api


@pytest_asyncio.fixture
async def one_request_at_a_time(kubernetes_api: Api, namespace: str, account: Api) -> AsyncIterator[None]:
    """The API server's own flow control takes one request of the account at a time and refuses all others."""
    limited = {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}
    level = {"metadata": {"name": namespace}, "spec": {"type": "Limited", "limited": limited}}
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": "default", "namespace": namespace}}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    spec = {
        "priorityLevelConfiguration": {"name": namespace},
        "matchingPrecedence": 2,
        "rules": [{"subjects": [subject], "resourceRules": [everything]}],
    }
    made = {"prioritylevelconfigurations": level, "flowschemas": {"metadata": {"name": namespace}, "spec": spec}}
    for kind, item in made.items():
        await kubernetes_api.create(f"{FLOW_CONTROL}/{kind}", item, at=AT)

    async def refuses() -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods"
        asked = [account._once("GET", path, body=None, query={}, content_type="") for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return any(isinstance(answer, Overloaded) and answer.status == 429 for answer in answers)

    await until(refuses)
    yield
    for kind in reversed(made):
        await kubernetes_api.delete(f"{FLOW_CONTROL}/{kind}/{namespace}", at=AT)


async def test_a_gang_that_the_api_server_throttles_is_created_whole(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, account: Api, one_request_at_a_time: None
) -> None:
    nodes = await make_nodes(16)
    wanted = jobs_of(order_on(nodes), KubernetesSettings(pool=namespace), namespace=namespace)
    made = await GangJobs(account, pool=namespace, at_once=16).create(wanted)
    assert account.calls["POST"] > len(wanted), "some were refused, and asked again"
    assert len(made) == len(await jobs(kubernetes_api, namespace)) == 16
    await pods_of(kubernetes_api, namespace, 16)


async def test_a_node_that_is_not_ready_and_comes_back_keeps_its_gang(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes), tmp_path, TRAINS, STORE=str(tmp_path / "store"))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    before = {pod["metadata"]["uid"] for pod in await pods(kubernetes_api, namespace)}
    process_nodes.silence(two_nodes[1], at_once=True)
    await until(lambda: are_open(told, {two_nodes[0]: True, two_nodes[1]: False}))
    step = progress(told, order.key)
    await until(lambda: progress(told, order.key) > step + 5)
    process_nodes.revive(two_nodes[1])
    await until(lambda: are_open(told, dict.fromkeys(two_nodes, True)))
    step = progress(told, order.key)
    await until(lambda: progress(told, order.key) > step + 5)
    assert {pod["metadata"]["uid"] for pod in await pods(kubernetes_api, namespace)} == before
    assert told.kinds(order.key).count("Started") == 1 and "Gone" not in told.kinds(order.key)


async def test_a_node_that_is_deleted_ends_its_gang_as_the_platforms_failure_and_frees_the_other_node(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes, gpus=2), tmp_path, WAITS)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    process_nodes.remove(two_nodes[1])
    # Pods of a node that does not exist are collected after two thirds of a minute; before, nobody can know their end.
    gone = await until(lambda: next((e for e in told.events[order.key] if isinstance(e, Gone)), None), 240.0)
    assert (gone.lost_member, gone.start_failure) == (1, None)
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)
    assert [node.name for node in await told.cluster.nodes()] == two_nodes[:1]
    again = flow(order_on(two_nodes[:1], gpus=2), tmp_path, "print('room', flush=True)")
    await told.cluster.launch(again)
    assert (await told.until(again.key, Gone)).flow_exit == 0


async def make_class(api: Api, namespace: str, name: str, **fields: Any) -> None:
    """A PriorityClass, once pods may name it: the admission of pods hears of a new one a moment late."""
    await api.create(CLASSES, {"metadata": {"name": name}, **fields}, at=AT)
    pod, path = shell("probe", "exit 0", priorityClassName=name), f"/api/v1/namespaces/{namespace}/pods"

    async def is_known() -> bool:
        try:
            await api._once("POST", path, body=pod, query={"dryRun": "All"}, content_type="application/json")
        except Forbidden as refused:
            assert "no PriorityClass" in str(refused)
            return False
        return True

    await until(is_known)


async def test_a_pod_that_kube_scheduler_preempts_lets_its_whole_gang_checkpoint_and_leave(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster,
    tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes, gpus=2), tmp_path, TRAINS, STORE=str(tmp_path / "store"))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    await until(lambda: progress(told, order.key) > 5)
    await make_class(kubernetes_api, namespace, namespace, value=1000)
    try:
        here = {"kubernetes.io/hostname": two_nodes[0]}
        foreign = shell("foreign", "exit 7", gpus=2, priorityClassName=namespace, nodeSelector=here)
        await Pods(kubernetes_api, namespace).create(foreign)
        gone = await told.until(order.key, Gone)
        assert gone.notice == "drain", "an eviction: it costs the user no retry"
        committed = [event.step for event in told.events[order.key] if isinstance(event, Committed)]
        assert gone.last_commit_step == committed[-1] > 5
        done = await Pods(kubernetes_api, namespace).phase("foreign", "Failed")
        assert ended(done)["exitCode"] == 7
    finally:
        await kubernetes_api.delete(f"{CLASSES}/{namespace}", at=AT)


async def test_with_a_priority_class_above_the_default_kube_scheduler_takes_no_single_member_from_a_gang(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    ours, theirs = f"{namespace}-gangs", f"{namespace}-foreign"
    await make_class(kubernetes_api, namespace, ours, value=100000, preemptionPolicy="Never")  # as the chart has it
    await make_class(kubernetes_api, namespace, theirs, value=1000)
    try:
        told = await open_cluster(two_nodes, priority_class=ours)
        order = flow(order_on(two_nodes, gpus=2), tmp_path, WAITS)
        await told.cluster.launch(order)
        await told.until(order.key, Started)
        here = {"kubernetes.io/hostname": two_nodes[0]}
        foreign = shell("foreign", "exit 7", gpus=2, priorityClassName=theirs, nodeSelector=here)
        await Pods(kubernetes_api, namespace).create(foreign)

        def was_tried(pod: Object) -> bool:
            return any(each["reason"] == "Unschedulable" for each in pod["status"].get("conditions") or ())

        refused = await Pods(kubernetes_api, namespace).until("foreign", was_tried)
        assert "preemption: 0/" in refused["status"]["conditions"][0]["message"]
        assert "nominatedNodeName" not in refused["status"]
        members = [pod for pod in await pods(kubernetes_api, namespace) if pod["metadata"]["name"] != "foreign"]
        assert [pod["status"]["phase"] for pod in members] == ["Running", "Running"]
        assert not any(pod["metadata"].get("deletionTimestamp") for pod in members)
        assert {(pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) for pod in members} == {(100000, "Never")}
        await Pods(kubernetes_api, namespace).delete("foreign")
        await told.cluster.stop(order.key, 0.0)
        await told.until(order.key, Gone)
    finally:
        for name in (ours, theirs):
            await kubernetes_api.delete(f"{CLASSES}/{name}", at=AT)


async def test_autoscalers_are_told_on_every_pod_of_a_gang_not_to_take_its_node_away(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, has_outposts=False)
    await told.cluster.launch(order_on(nodes))
    for pod in await pods_of(kubernetes_api, namespace, 2):
        annotations = pod["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"


async def test_a_foreign_pod_that_takes_the_places_between_plan_and_bind_fails_the_start_whole(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster,
    tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    await told.cluster._pods.stop()  # what happens now reaches the worker late
    thief = shell(f"thief-{uuid4().hex[:6]}", "trap 'exit 0' TERM; sleep 600 & wait", node=two_nodes[1], gpus=1)
    foreign = Pods(kubernetes_api, namespace)
    await foreign.create(thief)
    await foreign.phase(thief["metadata"]["name"], "Running")
    order = flow(order_on(two_nodes, gpus=2), tmp_path, "print('never', flush=True)")
    await told.cluster.launch(order)
    await told.cluster._pods.start()
    gone = await told.until(order.key, Gone)
    assert gone.start_failure and gone.start_failure.startswith(f"member 1 on {two_nodes[1]}: OutOfnvidia.com/gpu")
    assert told.kinds(order.key) == ["DevicesReleased", "Gone"]
    await told.cluster.forget(order.key)

    async def only_the_thief_is_there() -> bool:
        left = [pod["metadata"]["name"] for pod in await pods(kubernetes_api, namespace)]
        return left == [thief["metadata"]["name"]] and not await jobs(kubernetes_api, namespace)

    await until(only_the_thief_is_there)
    assert await are_open(told, {two_nodes[0]: True, two_nodes[1]: False}), "a node that has rejected rests"
    assert (await foreign.get(thief["metadata"]["name"]))["status"]["phase"] == "Running"  # type: ignore[index]


async def are_open(told: Told, wanted: dict[str, bool]) -> bool:
    """Whether exactly these nodes take new gangs."""
    return {node.name: node.schedulable for node in await told.cluster.nodes()} == wanted


def progress(told: Told, key: object) -> int:
    """The newest step that the gang has told of."""
    steps = [event.step for event in told.events.get(key, ()) if isinstance(event, Progressed)]  # type: ignore[call-overload]
    return max((step for step in steps if step is not None), default=0)
