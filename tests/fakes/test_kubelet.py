"""Process nodes on the real control plane: pods run, say how they ended, and leave as they would on a kubelet."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dsec_workers.clusters.kubernetes.api import Api
from tests.fakes.kubelet.process_nodes import Nodes, ProcessNodes
from tests.fixtures.pods import Pods, ended, pod, shell

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture
async def pods(kubernetes_api: Api, namespace: str) -> AsyncIterator[Pods]:
    yield Pods(kubernetes_api, namespace)


async def test_a_node_is_ready_and_says_what_it_has(process_nodes: ProcessNodes, kubernetes_api: Api) -> None:
    process_nodes.add("n1", gpus=4, mig={"1g.10gb": 7}, topology={"dsec.io/rack": "r1"})
    node = await kubernetes_api.get("/api/v1/nodes/n1")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] == "7"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert node["metadata"]["labels"]["dsec.io/rack"] == "r1"
    assert not node["spec"].get("taints")
    lease = await kubernetes_api.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1")
    assert lease["spec"]["holderIdentity"] == "n1"


async def test_nodes_belong_to_whoever_finds_the_socket(process_nodes: ProcessNodes, pods: Pods) -> None:
    first = process_nodes.add("n1", gpus=1)
    others = Nodes(process_nodes.folder)
    assert others.add("n1", gpus=1) == first, "a second time changes nothing"
    await pods.create(shell("p", "true", node="n1", gpus=1))
    await pods.phase("p", "Succeeded")
    others.slow_start("n1", 0.0)
    assert [pod.name for pod in others.pods("n1")] == ["p"]


async def test_a_job_s_pod_is_scheduled_runs_and_its_log_comes_through_the_api_server(
    process_nodes: ProcessNodes, pods: Pods, namespace: str
) -> None:
    process_nodes.add("n1", gpus=2)
    template = pod("x", "sh", "-c", "echo hello from $HOSTNAME; echo $NVIDIA_VISIBLE_DEVICES", gpus=2)["spec"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"backoffLimit": 0, "template": {"spec": template}},
    }
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    await pods.api.create(path, job, at="test.job")
    mine: list[str] = []
    while not mine:
        items, _ = await pods.api.list(pods.path, labels="job-name=j")
        mine = [item["metadata"]["name"] for item in items]
    done = await pods.phase(mine[0], "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
    assert ended(done)["exitCode"] == 0 and ended(done)["reason"] == "Completed"
    said = (await pods.log(mine[0])).splitlines()
    assert said[0] == f"hello from {mine[0]}"
    assert len(said[1].split(",")) == 2 and all(uuid.startswith("GPU-") for uuid in said[1].split(","))


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 0", 0, "Completed"), ("exit 7", 7, "Error"), ("kill -KILL $$$$", 137, "Error")],
)
async def test_an_exit_code_is_reported(
    process_nodes: ProcessNodes, pods: Pods, script: str, code: int, reason: str
) -> None:
    process_nodes.add("n1")
    await pods.create(shell("p", script, node="n1"))
    done = await pods.phase("p", "Succeeded", "Failed")
    assert done["status"]["phase"] == ("Failed" if code else "Succeeded")
    assert (ended(done)["exitCode"], ended(done)["reason"]) == (code, reason)


async def test_what_a_container_says_at_its_end_is_in_its_status(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    await pods.create(
        shell("told", "echo why > /dev/termination-log; exit 1", node="n1"),
        shell("logged", "echo last words; exit 1", node="n1"),
    )
    fallback = shell("fallback", "echo last words; exit 1", node="n1")
    fallback["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    await pods.create(fallback)
    assert ended(await pods.phase("told", "Failed"))["message"] == "why\n"
    assert "message" not in ended(await pods.phase("logged", "Failed"))
    assert ended(await pods.phase("fallback", "Failed"))["message"] == "last words\n"


async def test_a_program_that_is_not_there_fails_to_start(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    await pods.create(pod("p", "/no/such/program", node="n1"))
    done = ended(await pods.phase("p", "Failed"))
    assert done["reason"] == "StartError" and "/no/such/program" in done["message"]


async def test_an_image_s_entry_point_is_the_node_s_table(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1", entrypoints={"ours": ["python", "-c", "import sys; print(sys.argv[1:])"]})
    manifest = pod("p", node="n1", container={"image": "ours", "command": None, "args": ["a", "$(HOSTNAME)"]})
    await pods.create(manifest)
    await pods.phase("p", "Succeeded")
    assert await pods.log("p") == "['a', 'p']\n"


async def test_restarted_containers_keep_count_and_the_log_of_the_time_before(
    process_nodes: ProcessNodes, pods: Pods
) -> None:
    process_nodes.add("n1", restart_backoff_seconds=0.05)
    script = "echo run >> $HOME/runs; wc -l < $HOME/runs; test $(wc -l < $HOME/runs) -ge 3"
    await pods.create(shell("p", script, node="n1", restartPolicy="OnFailure"))
    done = await pods.phase("p", "Succeeded")
    assert done["status"]["containerStatuses"][0]["restartCount"] == 2
    assert (await pods.log("p")).strip() == "3"
    assert (await pods.log("p", previous="true")).strip() == "2"


async def test_init_containers_go_first_in_order_and_sidecars_stay(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}

    def container(name: str, script: str, **more: object) -> dict[str, object]:
        return {"name": name, "image": "none", "command": ["sh", "-c", script], **mounts, **more}

    manifest = shell(
        "p",
        "cat /shared/order; test -e /shared/sidecar",
        node="n1",
        container=mounts,
        volumes=[{"name": "shared", "emptyDir": {}}],
        initContainers=[
            container("one", "echo one >> /shared/order"),
            container("side", "touch /shared/sidecar; while :; do sleep 0.1; done", restartPolicy="Always"),
            container("two", "echo two >> /shared/order"),
        ],
    )
    await pods.create(manifest)
    done = await pods.phase("p", "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
    assert (await pods.log("p")).split() == ["one", "two"]
    assert ended(done, "side")["exitCode"] == 137
    await pods.create(
        shell(
            "q",
            "true",
            node="n1",
            initContainers=[container("bad", "exit 3")],
            volumes=[{"name": "shared", "emptyDir": {}}],
        )
    )
    assert ended(await pods.phase("q", "Failed"), "bad")["exitCode"] == 3


async def test_pods_have_addresses_of_their_own_and_reach_each_other_by_them(
    process_nodes: ProcessNodes, pods: Pods
) -> None:
    process_nodes.add("n1")
    address = {"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    serve = "python -u -m http.server 8080 --bind $IP"
    probe = {"readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 20}}
    await pods.create(*(shell(name, serve, node="n1", container={**address, **probe}) for name in "ab"))

    def is_ready(found: dict[str, Any]) -> bool:
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))

    ips = [(await pods.until(name, is_ready))["status"]["podIP"] for name in "ab"]
    assert len(set(ips)) == 2 and all(ip.startswith("127.") for ip in ips)


async def test_a_pod_speaks_to_the_api_server_with_its_own_account(
    process_nodes: ProcessNodes, pods: Pods, namespace: str
) -> None:
    process_nodes.add("n1")
    ask = """
import asyncio, json
from kubernetes_asyncio import client, config
async def main():
    await config.load_kube_config()
    async with client.ApiClient() as api:
        review = await client.AuthenticationV1Api(api).create_self_subject_review(client.V1SelfSubjectReview())
        print(review.status.user_info.username, json.dumps(review.status.user_info.extra))
asyncio.run(main())
"""
    await pods.create(pod("p", "python", "-c", ask, node="n1"))
    await pods.phase("p", "Succeeded", "Failed")
    name, extra = (await pods.log("p")).split(" ", 1)
    assert name == f"system:serviceaccount:{namespace}:default"
    assert json.loads(extra)["authentication.kubernetes.io/pod-name"] == ["p"]
