"""A worker finds Jobs on the cluster that a DSec of another version has made."""

import json
import re
from pathlib import Path

import pytest

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.devices import Health
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.naming import ANNOTATION_PROTOCOL, label_value
from tests.workers.clusters.kubernetes.conftest import AT, MakeNodes, OpenCluster
from tests.workers.clusters.kubernetes.test_cluster import jobs, pods_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FORMER = Path(__file__).parents[1] / "former" / "protocol-1.json"


async def former_jobs(api: Api, namespace: str, nodes: list[str], **annotations: str) -> list[Object]:
    """The Jobs of a gang as a worker of the former version made them, on these nodes; their pods are there."""
    text = json.dumps(json.loads(FORMER.read_text())["jobs"])
    for index, node in enumerate(nodes):
        text = text.replace(f"node-{index}", node)
    text = text.replace('"dsec.io/pool": "gpus"', f'"dsec.io/pool": "{label_value(namespace)}"')
    for job in json.loads(text):
        for item in (job, job["spec"]["template"]):
            item["metadata"]["annotations"].update(annotations)
        job["metadata"]["namespace"] = namespace
        await api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job, at=AT)
    await pods_of(api, namespace, len(nodes))
    return await jobs(api, namespace)


async def test_a_gang_of_a_former_worker_is_adopted(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2, by_hand=True)
    made = await former_jobs(kubernetes_api, namespace, nodes)
    told = await open_cluster(nodes)
    (observed,) = await told.cluster.adopt()
    assert observed.key == ("00000000-0000-4000-8000-000000000001", 1)
    assert observed.placement.devices == tuple(f"{node}/nvidia.com/gpu/0" for node in nodes)
    assert sorted(observed.launch["jobs"]) == sorted(job["metadata"]["name"] for job in made)


async def test_a_gang_of_a_newer_worker_is_reported_as_such_and_not_touched(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    nodes = await make_nodes(2, by_hand=True)
    newer = str(gang_protocol.VERSION + 1)
    before = await former_jobs(kubernetes_api, namespace, nodes, **{ANNOTATION_PROTOCOL: newer})
    told = await open_cluster(nodes)
    for _ in range(2):
        (observed,) = await told.cluster.adopt()
        assert observed.key == ("00000000-0000-4000-8000-000000000001", 1)
        assert observed.too_new is not None
        assert re.search(rf"{namespace}/dsec-.* is of a newer DSec .*: upgrade this worker", observed.too_new)
        assert (observed.placement.devices, dict(observed.launch), observed.events) == ((), {}, ())
    taken = [sum(d.health is Health.FROZEN for d in node.devices) for node in await told.cluster.nodes()]
    assert taken == [1, 1], "what it takes is foreign"
    await told.close()
    after = await jobs(kubernetes_api, namespace)
    assert [job["metadata"]["uid"] for job in after] == [job["metadata"]["uid"] for job in before]
    there = [*after, *await pods_of(kubernetes_api, namespace, 2)]
    assert not any(each["metadata"].get("deletionTimestamp") for each in there)
