"""The adapter on the real API server, with nodes that run pods in name: starting, failing, leaving, adopting."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.devices import Health
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import DevicesReleased, GangKey, Gone, LaunchOrder, Started
from tests.workers.clusters.kubernetes.conftest import AT, MakeNodes, OpenCluster, order_on, places, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
IN_NAME = {"has_outposts": False}


async def pods(api: Api, namespace: str) -> list[dict[str, Any]]:
    return (await api.list(f"/api/v1/namespaces/{namespace}/pods"))[0]


async def jobs(api: Api, namespace: str) -> list[dict[str, Any]]:
    return (await api.list(f"/apis/batch/v1/namespaces/{namespace}/jobs"))[0]


async def set_status(api: Api, pod: dict[str, Any], **status: Any) -> None:
    """Play the kubelet of a node on which nothing happens by itself."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    await api.merge(path, {"status": status}, at=AT)


async def pods_of(api: Api, namespace: str, count: int) -> list[dict[str, Any]]:
    async def there() -> list[dict[str, Any]] | None:
        found = await pods(api, namespace)
        return found if len(found) == count else None

    return sorted(await until(there), key=lambda pod: pod["metadata"]["name"])


async def until_nothing_is_left(api: Api, namespace: str) -> None:
    async def nothing() -> bool:
        return not await jobs(api, namespace) and not await pods(api, namespace)

    await until(nothing)


async def test_a_gang_starts_is_stopped_and_leaves_nothing(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes, gpus=8)
    launch = await told.cluster.launch(order)
    assert launch["namespace"] == namespace and len(launch["jobs"]) == 2
    await told.until(order.key, Started)
    await told.cluster.stop(order.key, 0.0)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure is None
    assert told.kinds(order.key) == ["Started", "DevicesReleased", "Gone"]
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_place_is_not_free_before_its_last_pod_has_ended(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(1, by_hand=True, gpus=2)
    told = await open_cluster(nodes, **IN_NAME)
    first, second = order_on(nodes, gpus=2), order_on(nodes, gpus=2, hold_start=True)
    await told.cluster.launch(first)
    (pod,) = await pods_of(kubernetes_api, namespace, 1)
    await set_status(kubernetes_api, pod, phase="Running")
    await told.until(first.key, Started)
    launching = asyncio.create_task(told.cluster.launch(second))
    await told.cluster.stop(first.key, 0.0)

    async def is_asked_to_leave() -> bool:
        return bool((await pods(kubernetes_api, namespace))[0]["metadata"].get("deletionTimestamp"))

    await until(is_asked_to_leave)
    (model,) = await told.cluster.nodes()
    assert {device.health for device in model.devices} == {Health.FROZEN}
    assert not launching.done() and "Gone" not in told.kinds(first.key)
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    await kubernetes_api.delete(path, grace_seconds=0, at=AT)  # the kubelet's own last delete
    await told.until(first.key, DevicesReleased)
    await launching
    assert {device.health for device in (await told.cluster.nodes())[0].devices} == {Health.HEALTHY}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
        ("NodeAffinity", "Pod was rejected"),
    ],
)
async def test_a_kubelet_that_rejects_one_member_fails_the_start_whole_and_its_node_rests(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster, reason: str, message: str
) -> None:
    nodes = await make_nodes(2, by_hand=True)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes)
    await told.cluster.launch(order)
    first, second = await pods_of(kubernetes_api, namespace, 2)
    await set_status(kubernetes_api, first, phase="Running")
    await set_status(kubernetes_api, second, phase="Failed", reason=reason, message=message)

    async def first_is_asked_to_leave() -> bool:
        found = {pod["metadata"]["name"]: pod for pod in await pods(kubernetes_api, namespace)}
        pod = found.get(first["metadata"]["name"])
        return pod is None or bool(pod["metadata"].get("deletionTimestamp"))

    await until(first_is_asked_to_leave)
    path = f"/api/v1/namespaces/{namespace}/pods/{first['metadata']['name']}"
    await kubernetes_api.delete(path, grace_seconds=0, at=AT)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure == f"member 1 on {nodes[1]}: {reason}: {message}"
    assert {node.name: node.schedulable for node in await told.cluster.nodes()} == {nodes[0]: True, nodes[1]: False}
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_start_that_takes_too_long_is_rolled_back_with_what_it_waited_for(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2, by_hand=True)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes, start_timeout_seconds=3600.0)
    await told.cluster.launch(order)
    first, second = await pods_of(kubernetes_api, namespace, 2)
    await set_status(kubernetes_api, first, phase="Running")
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {"name": "gang", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    await set_status(kubernetes_api, second, containerStatuses=[{**status, "state": {"waiting": waiting}}])
    view = told.cluster._roster.views[order.key]
    await until(lambda: (fates := view.fates()) and len(fates) == 2 and fates[0].is_running and fates[1].stuck)
    view.start_timeout_seconds = 2.0  # time passes

    async def finish() -> bool:
        for pod in await pods(kubernetes_api, namespace):
            if pod["metadata"].get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
                await kubernetes_api.delete(path, grace_seconds=0, at=AT)
        return "Gone" in told.kinds(order.key)

    await until(finish)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure == (
        f"member 1 on {nodes[1]} is not running after 2 s: ImagePullBackOff: Back-off pulling image"
    )


async def test_a_quota_that_refuses_one_pod_fails_the_start_with_its_own_words(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, **IN_NAME)
    for mirror in told.cluster._namespaces._mirrors[namespace]:
        await mirror.stop()  # the quota reaches the worker late
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    await kubernetes_api.create(path, quota, at=AT)

    async def counted() -> bool:
        return bool((await kubernetes_api.get(f"{path}/gpus")).get("status", {}).get("hard"))

    await until(counted)
    order = order_on(nodes)
    await told.cluster.launch(order)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure is not None
    assert "its pod was not admitted" in gone.start_failure and "exceeded quota: gpus" in gone.start_failure
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_pod_deleted_by_hand_ends_its_gang_and_nothing_of_it_stays(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes)
    order = replace(order, request=replace(order.request, grace_seconds=0.0))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    _, second = await pods_of(kubernetes_api, namespace, 2)
    await kubernetes_api.delete(f"/api/v1/namespaces/{namespace}/pods/{second['metadata']['name']}", at=AT)
    gone = await told.until(order.key, Gone)
    assert gone.lost_member is not None and gone.start_failure is None
    await told.cluster.forget(order.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_job_deleted_by_hand_ends_its_gang(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes)
    launch = await told.cluster.launch(order)
    await told.until(order.key, Started)
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{launch['jobs'][0]}"
    await kubernetes_api.delete(path, propagation="Background", at=AT)
    gone = await told.until(order.key, Gone)
    assert gone.lost_member == 0
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_successor_adopts_what_runs_and_hears_its_end(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    first = await open_cluster(nodes, **IN_NAME)
    order = order_on(nodes, gpus=3)
    await first.cluster.launch(order)
    await first.until(order.key, Started)
    await first.close()
    second = await open_cluster(nodes, **IN_NAME)
    (observed,) = await second.cluster.adopt()
    assert (observed.key, observed.placement) == (order.key, order.placement)
    assert second.surprises == 0
    assert [node.schedulable for node in await second.cluster.nodes()] == [True, True]
    await second.until(order.key, Started)
    await second.cluster.launch(order)  # a launch whose answer was lost: it is adopted, not doubled
    assert len(await pods(kubernetes_api, namespace)) == 2
    await second.cluster.stop(order.key, 0.0)
    await second.until(order.key, Gone)


async def test_what_nobody_listens_to_does_not_pile_up_in_the_worker_21031_18605(
    kubernetes: ControlPlane, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Issues 21031, 18605: event queues without a bound, and a worker whose memory grows."""
    nodes = await make_nodes(1)
    told = await open_cluster(nodes, **IN_NAME)
    on = [MemberPlacement(node=nodes[0], devices=places(nodes[0], index)) for index in range(3)]
    orders = [order_on(nodes, placement=Placement(members=(member,))) for member in on]
    monkeypatch.setattr("dsec_workers.clusters.kubernetes.cluster.EVENTS_AHEAD", 1)
    api = await Api.connect(ClusterAccess(kubeconfig=kubernetes.kubeconfig))
    settings = KubernetesSettings(pool=namespace, namespace=namespace, **IN_NAME)
    deaf = KubernetesCluster(api, settings, clock=SystemClock())
    await deaf.prepare()
    try:
        for order in orders:
            await told.cluster.launch(order)
            await told.until(order.key, Started)
        await deaf.adopt()
        await until(lambda: deaf._events.full())
        for order in orders:
            await told.cluster.stop(order.key, 0.0)
            await told.until(order.key, Gone)
        assert deaf._events.qsize() == 1
        heard: dict[GangKey, list[str]] = {}
        async with asyncio.timeout(60):
            async for event in deaf.events():
                heard.setdefault(event.key, []).append(type(event).__name__)
                if len(heard) == 3 and all(names[-1] == "Gone" for names in heard.values()):
                    break
        assert heard == {order.key: told.kinds(order.key) for order in orders}, "all of it is told, in order"
    finally:
        await deaf.close()


async def test_a_gang_of_which_only_a_part_was_created_is_completed_by_a_second_launch(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    order = order_on(nodes)
    told = await open_cluster(nodes, **IN_NAME)
    settings = KubernetesSettings(pool=namespace, upload_seconds=5)
    wanted = jobs_of(order, settings, namespace=namespace)
    await GangJobs(kubernetes_api, pool=namespace, at_once=1).create(wanted[:1])
    (observed,) = await told.cluster.adopt()
    assert observed.key == order.key and "Started" not in told.kinds(order.key)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    await pods_of(kubernetes_api, namespace, 2)


async def test_a_stale_attempt_that_a_fenced_worker_creates_late_is_found_and_swept(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(1)
    told = await open_cluster(nodes, **IN_NAME)
    assert await told.cluster.adopt() == ()
    stale = order_on(nodes)
    settings = KubernetesSettings(pool=namespace, upload_seconds=5)
    await GangJobs(kubernetes_api, pool=namespace, at_once=1).create(jobs_of(stale, settings, namespace=namespace))
    await until(lambda: told.surprises)
    (observed,) = await told.cluster.adopt()
    assert observed.key == stale.key
    await told.cluster.stop(stale.key, 0.0)
    await told.until(stale.key, Gone)
    await told.cluster.forget(stale.key)
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_foreign_pods_take_places_and_are_never_touched(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1, gpus=4)
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    foreign = {"metadata": {"name": "foreign"}, "spec": {"nodeName": node, "containers": [container]}}
    await kubernetes_api.create(f"/api/v1/namespaces/{namespace}/pods", foreign, at=AT)
    told = await open_cluster([node], **IN_NAME)

    async def seen() -> bool:
        (model,) = await told.cluster.nodes()
        return [device.health for device in model.devices].count(Health.FROZEN) == 3

    await until(seen)
    order = order_on([node], gpus=2, start_timeout_seconds=1.0)
    with pytest.raises(ClusterError, match=rf"node {node} has 1 nvidia.com/gpu free, and 2 are needed there"):
        await told.cluster.launch(order)
    assert [pod["metadata"]["name"] for pod in await pods(kubernetes_api, namespace)] == ["foreign"]
    assert not await jobs(kubernetes_api, namespace)


async def test_a_pod_that_vanishes_from_an_unreachable_node_keeps_its_places_until_the_node_is_fenced(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1, by_hand=True)
    told = await open_cluster([node], **IN_NAME)
    order = order_on([node])
    await told.cluster.launch(order)
    (pod,) = await pods_of(kubernetes_api, namespace, 1)
    await set_status(kubernetes_api, pod, phase="Running")
    await told.until(order.key, Started)
    silent = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    await kubernetes_api.merge(f"/api/v1/nodes/{node}/status", {"status": {"conditions": silent}}, at=AT)
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    await kubernetes_api.merge(path, {"metadata": {"finalizers": []}}, at=AT)
    await kubernetes_api.delete(path, grace_seconds=0, at=AT)  # somebody's kubectl delete --force
    other = order_on([node])
    with pytest.raises(ClusterError, match="is not Ready"):
        await told.cluster.launch(other)
    for _ in range(10):
        await asyncio.sleep(0.2)
        assert "DevicesReleased" not in told.kinds(order.key)
    fenced = {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]}}
    await kubernetes_api.merge(f"/api/v1/nodes/{node}", fenced, at=AT)
    gone = await told.until(order.key, Gone)
    assert gone.lost_member == 0


async def test_a_cordoned_node_takes_nothing_new(
    kubernetes_api: Api, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1)
    told = await open_cluster([node], **IN_NAME)
    await kubernetes_api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, at=AT)

    async def is_closed() -> bool:
        return not (await told.cluster.nodes())[0].schedulable

    await until(is_closed)
    with pytest.raises(ClusterError, match=f"node {node} is cordoned"):
        await told.cluster.launch(order_on([node]))


async def test_a_node_with_a_tainted_card_takes_nothing_new_until_the_taint_is_gone(
    kubernetes_api: Api, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2)
    told = await open_cluster(nodes, **IN_NAME)
    path = "/apis/resource.k8s.io/v1/resourceslices"
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    pool = {"name": nodes[0], "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0"}, {"name": "gpu-3", "taints": [taint]}]
    spec = {"driver": "gpu.nvidia.com", "pool": pool, "nodeName": nodes[0], "devices": devices}
    await kubernetes_api.create(path, {"metadata": {"name": nodes[0]}, "spec": spec}, at=AT)

    async def are_open(*wanted: bool) -> bool:
        return [node.schedulable for node in await told.cluster.nodes()] == list(wanted)

    try:
        await until(lambda: are_open(False, True))
        with pytest.raises(ClusterError, match=r"device gpu-3 has the taint gpu\.nvidia\.com/xid=79:NoSchedule"):
            await told.cluster.launch(order_on(nodes[:1]))
        await kubernetes_api.merge(f"{path}/{nodes[0]}", {"spec": {"devices": devices[:1]}}, at=AT)
        await until(lambda: are_open(True, True))
    finally:
        await kubernetes_api.delete(f"{path}/{nodes[0]}", at=AT)


async def test_a_resource_that_no_node_offers_is_named_beside_those_there_are(
    make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1)
    told = await open_cluster([node], **IN_NAME)
    manifest = {"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"rdma/hca": "1"}}}]}}}}
    with pytest.raises(ClusterError, match=r"no node offers the resource rdma/hca; those .* are nvidia\.com/gpu"):
        await told.cluster.launch(order_on([node], job_manifest=manifest))


async def test_a_launch_that_fails_leaves_its_places_free(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1)
    told = await open_cluster([node], **IN_NAME)
    manifest = {"spec": {"template": {"spec": {"containers": [{"name": "NOT A NAME"}]}}}}
    refused = order_on([node], job_manifest=manifest)
    with pytest.raises(ClusterError, match=r"refuses the pod template.*containers\[0\]\.name"):
        await told.cluster.launch(refused)
    order: LaunchOrder = order_on([node], gpus=8)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    assert await told.cluster.adopt() != ()
    await told.cluster.stop(GangKey("never-heard-of", 1), 0.0)


async def test_the_secret_of_a_namespace_is_made_once_and_follows_prefects_address(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1)
    told = await open_cluster([node], **IN_NAME)
    path = f"/api/v1/namespaces/{namespace}/secrets/dsec-prefect"
    keys = set()
    for address in ("http://one/api", "http://two/api"):
        await told.cluster.launch(order_on([node], env={"PREFECT_API_URL": address}))
        data = (await kubernetes_api.get(path))["data"]
        keys.add(data["DSEC_CHANNEL_KEY"])
        import base64

        assert base64.b64decode(data["PREFECT_API_URL"]).decode() == address
    assert len(keys) == 1


async def test_a_ledgers_address_in_a_namespaces_secret_never_gets_into_a_pod(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    (node,) = await make_nodes(1)
    secret = {"metadata": {"name": "dsec-prefect"}, "stringData": {"DSEC_LEDGER_URL": "postgresql://ledger"}}
    await kubernetes_api.create(f"/api/v1/namespaces/{namespace}/secrets", secret, at=AT)
    told = await open_cluster([node], **IN_NAME)
    await told.cluster.launch(order_on([node]))
    (pod,) = await pods_of(kubernetes_api, namespace, 1)
    (container,) = pod["spec"]["containers"]
    assert "envFrom" not in container
    keys = {each["valueFrom"]["secretKeyRef"]["key"] for each in container["env"] if each["name"].startswith("PREFECT")}
    assert keys == {"PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"}
