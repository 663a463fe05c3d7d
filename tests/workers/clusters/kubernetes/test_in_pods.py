"""Gangs in pods whose commands really run, on process nodes of the real control plane: from launch to the last word."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import Committed, DevicesReleased, Gone, LaunchOrder, Progressed, Started
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.fixtures.pods import Pods
from tests.workers.clusters.kubernetes.conftest import GRACE_SECONDS, OpenCluster, Told, order_on, until
from tests.workers.clusters.kubernetes.outposts import script
from tests.workers.clusters.kubernetes.test_outposts import TRAINS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SAYS_WHO_IT_IS = """
program = "import os, json; print(json.dumps(dict(os.environ)))"
ended, last = run([sys.executable, "-c", program])
assert [line["exit"] for line in ended] == [0] * len(ended), (ended, last)
"""


def flow(order: LaunchOrder, folder: Path, program: str, **env: str) -> LaunchOrder:
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    return replace(order, command=script(folder, program), env={"PYTHONPATH": path, **env})


async def leaves_nothing(told: Told, api: Api, namespace: str, order: LaunchOrder) -> None:
    await told.cluster.forget(order.key)

    async def nothing() -> bool:
        pods, _ = await api.list(f"/api/v1/namespaces/{namespace}/pods")
        jobs, _ = await api.list(f"/apis/batch/v1/namespaces/{namespace}/jobs")
        return not pods and not jobs

    await until(nothing)


async def test_a_gang_of_two_pods_uses_the_cards_that_the_kubelets_chose(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes, gpus=2), tmp_path, SAYS_WHO_IT_IS)
    await told.cluster.launch(order)
    gone = await told.until(order.key, Gone)
    assert (gone.flow_exit, gone.member_exits, gone.start_failure) == (0, {0: 0, 1: 0}, None)
    assert told.kinds(order.key) == ["Started", "DevicesReleased", "Gone"]
    pods, _ = await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/pods")
    assert {pod["status"]["phase"] for pod in pods} == {"Succeeded"}
    said: dict[int, dict[str, Any]] = {}
    for pod in pods:
        log = await Pods(kubernetes_api, namespace).log(pod["metadata"]["name"], container="gang")
        for line in log.splitlines():
            name, _, text = line.partition("] ")
            if name.startswith("[rank-"):
                said[int(name.removeprefix("[rank-"))] = json.loads(text)
    assert sorted(said) == [0, 1, 2, 3]
    cards = [said[rank]["CUDA_VISIBLE_DEVICES"] for rank in range(4)]
    assert len(set(cards)) == 4 and all(card.startswith("GPU-") for card in cards)
    started = await told.until(order.key, Started)
    assert started.cards == {two_nodes[0]: tuple(cards[:2]), two_nodes[1]: tuple(cards[2:])}, "and tells which they are"
    assert "DSEC_CHANNEL_KEY" not in said[0] and "DSEC_ORDER" not in said[0]
    await leaves_nothing(told, kubernetes_api, namespace, order)


async def test_an_evicted_gang_checkpoints_leaves_and_its_room_is_taken_by_the_next(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes, gpus=2), tmp_path, TRAINS, STORE=str(tmp_path / "store"))
    order = replace(order, request=replace(order.request, grace_seconds=GRACE_SECONDS))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    await until(lambda: any(isinstance(e, Progressed) and (e.step or 0) > 5 for e in told.events[order.key]))
    deadline = SystemClock().now() + GRACE_SECONDS
    notice = Notice(kind=NoticeKind.EVICT, reason="a test needs the room", deadline=deadline, attempt=1)
    await told.cluster.notify(order.key, notice)
    urgent = flow(order_on(two_nodes, gpus=2, hold_start=True), tmp_path, "print('urgent', flush=True)")
    await told.cluster.launch(urgent)
    assert "DevicesReleased" in told.kinds(order.key), "a kubelet admits nothing before"
    gone = await told.until(order.key, Gone)
    assert gone.notice == "evict" and gone.lost_member is None
    committed = [event.step for event in told.events[order.key] if isinstance(event, Committed)]
    assert gone.last_commit_step == committed[-1] > 5
    assert (await told.until(urgent.key, Gone)).flow_exit == 0
    await told.cluster.forget(urgent.key)
    await leaves_nothing(told, kubernetes_api, namespace, order)


async def test_a_successor_hears_the_end_of_a_gang_that_ended_while_nobody_listened(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    first = await open_cluster(two_nodes)
    gate = tmp_path / "gate"
    program = f"import pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\nsys.exit(3)"
    order = flow(order_on(two_nodes[:1]), tmp_path, program)
    await first.cluster.launch(order)
    await first.until(order.key, Started)
    await first.close()
    gate.touch()

    async def has_ended() -> bool:
        pods, _ = await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/pods")
        return [pod["status"]["phase"] for pod in pods] == ["Failed"]

    await until(has_ended)
    second = await open_cluster(two_nodes)
    (observed,) = await second.cluster.adopt()
    assert observed.key == order.key
    gone = await second.until(order.key, Gone)
    assert gone.flow_exit == 3 and second.kinds(order.key) == ["Started", "DevicesReleased", "Gone"]
    await leaves_nothing(second, kubernetes_api, namespace, order)


async def test_a_pod_whose_node_dies_is_the_platforms_failure_and_its_places_wait_for_the_fence(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    order = flow(order_on(two_nodes), tmp_path, "run([sys.executable, '-c', 'import time; time.sleep(600)'])")
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    process_nodes.silence(two_nodes[1], at_once=True)
    pods, _ = await kubernetes_api.list(f"/api/v1/namespaces/{namespace}/pods")
    silent = next(pod for pod in pods if pod["spec"]["nodeName"] == two_nodes[1])
    await Pods(kubernetes_api, namespace).delete(silent["metadata"]["name"])
    await told.cluster.stop(order.key, 0.0)

    async def first_has_ended() -> bool:
        found = await Pods(kubernetes_api, namespace).get(
            next(p for p in pods if p["spec"]["nodeName"] == two_nodes[0])["metadata"]["name"]
        )
        return found is None or found["status"]["phase"] in ("Succeeded", "Failed")

    await until(first_has_ended)
    assert "DevicesReleased" not in told.kinds(order.key)
    process_nodes.revive(two_nodes[1])
    await told.until(order.key, DevicesReleased)
    await leaves_nothing(told, kubernetes_api, namespace, order)


async def test_a_node_that_rejects_a_pod_is_the_platforms_failure(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], process_nodes: ProcessNodes,
    open_cluster: OpenCluster, tmp_path: Path,
) -> None:  # fmt: skip
    told = await open_cluster(two_nodes)
    process_nodes.reject_next(two_nodes[1], reason="UnexpectedAdmissionError")
    order = flow(order_on(two_nodes), tmp_path, "print('never', flush=True)")
    await told.cluster.launch(order)
    gone = await told.until(order.key, Gone)
    assert gone.start_failure and gone.start_failure.startswith(f"member 1 on {two_nodes[1]}: UnexpectedAdmissionError")
    await leaves_nothing(told, kubernetes_api, namespace, order)
