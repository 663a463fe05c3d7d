"""Jobs on the real API server: all of a gang or none, adopted instead of doubled, deleted by uid.

T42 is ray#18872: what a job leaves when it dies.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import Forbidden
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import GangKey
from tests.workers.clusters.kubernetes.conftest import AT, MakeNodes, order_on, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SETTINGS = KubernetesSettings(pool="gpus")


@pytest.fixture
def jobs(kubernetes_api: Api) -> GangJobs:
    return GangJobs(kubernetes_api, pool="gpus", at_once=8)


async def pods(api: Api, namespace: str) -> list[dict[str, Any]]:
    return (await api.list(f"/api/v1/namespaces/{namespace}/pods"))[0]


async def test_a_gang_of_jobs_runs_where_it_was_put_and_a_second_create_adopts_it(
    kubernetes_api: Api, namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    nodes = await make_nodes(3)
    order = order_on(nodes, gpus=8)
    wanted = jobs_of(order, SETTINGS, namespace=namespace)
    first, second = await asyncio.gather(jobs.create(wanted), jobs.create(wanted))
    assert [job["metadata"]["uid"] for job in first] == [job["metadata"]["uid"] for job in second]

    async def all_run() -> bool:
        return [p["status"].get("phase") for p in await pods(kubernetes_api, namespace)] == ["Running"] * 3

    await until(all_run)
    assert sorted(pod["spec"]["nodeName"] for pod in await pods(kubernetes_api, namespace)) == sorted(nodes)
    assert set(await jobs.all(namespace)) == {order.key}
    assert len(await jobs.of(order.key, namespace)) == 3


async def test_t42_deleting_the_first_members_job_deletes_the_gang(
    kubernetes_api: Api, namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    order = order_on(await make_nodes(2))
    created = await jobs.create(jobs_of(order, SETTINGS, namespace=namespace))
    await jobs.delete(created[:1])

    async def nothing_is_left() -> bool:
        return not await jobs.of(order.key, namespace) and not await pods(kubernetes_api, namespace)

    await until(nothing_is_left)


async def test_a_gang_of_which_one_job_is_refused_leaves_nothing_and_names_the_field(
    kubernetes_api: Api, namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    order = order_on(await make_nodes(3))
    wanted = jobs_of(order, SETTINGS, namespace=namespace)
    wanted[2]["spec"]["template"]["spec"]["containers"][0]["name"] = "NOT A NAME"
    with pytest.raises(ClusterError, match=r"refuses the pod template.*spec\.containers\[0\]\.name"):
        await jobs.create(wanted)

    async def nothing_is_left() -> bool:
        return not await jobs.of(order.key, namespace) and not await pods(kubernetes_api, namespace)

    await until(nothing_is_left)


async def test_a_quota_that_refuses_a_job_rolls_the_gang_back(
    kubernetes_api: Api, namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    quota = {"metadata": {"name": "jobs"}, "spec": {"hard": {"count/jobs.batch": "2"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await kubernetes_api.create(path, quota, at=AT)

    async def counted() -> bool:
        return bool((await kubernetes_api.get(f"{path}/jobs")).get("status", {}).get("hard"))

    await until(counted)
    order = order_on(await make_nodes(3))
    with pytest.raises(Forbidden, match="exceeded quota") as refused:
        await jobs.create(jobs_of(order, SETTINGS, namespace=namespace))
    assert refused.value.by_quota

    async def nothing_is_left() -> bool:
        return not await jobs.of(order.key, namespace)

    await until(nothing_is_left)


async def test_a_successor_of_the_same_name_is_not_deleted(
    namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    order = order_on(await make_nodes(1))
    wanted = jobs_of(order, SETTINGS, namespace=namespace)
    (old,) = await jobs.create(wanted)
    await jobs.delete([old])

    async def is_gone() -> bool:
        return not await jobs.of(order.key, namespace)

    await until(is_gone)
    (new,) = await jobs.create(wanted)
    await jobs.delete([old])
    (found,) = await jobs.of(order.key, namespace)
    assert found["metadata"]["uid"] == new["metadata"]["uid"]


async def test_a_job_of_that_name_elsewhere_is_not_taken_for_ours(
    namespace: str, jobs: GangJobs, make_nodes: MakeNodes
) -> None:
    one, other = await make_nodes(2)
    order = order_on([one])
    await jobs.create(jobs_of(order, SETTINGS, namespace=namespace))
    moved = replace(order, placement=order_on([other]).placement)
    with pytest.raises(ClusterError, match="is not this attempt's"):
        await jobs.create(jobs_of(moved, SETTINGS, namespace=namespace))


async def test_a_namespace_that_does_not_exist_is_named_with_what_to_do(jobs: GangJobs) -> None:
    with pytest.raises(ClusterError, match="namespace nowhere does not exist; create it, or name another"):
        await jobs.create(jobs_of(order_on(["n"]), SETTINGS, namespace="nowhere"))


async def test_attempts_are_told_apart(namespace: str, jobs: GangJobs, make_nodes: MakeNodes) -> None:
    nodes = await make_nodes(1)
    first = order_on(nodes)
    second = replace(first, key=GangKey(first.key.run_id, 2))
    for order in (first, second):
        await jobs.create(jobs_of(order, SETTINGS, namespace=namespace))
    found = await jobs.all()
    assert {first.key, second.key} <= set(found)
    await jobs.delete(found[first.key])

    async def only_the_second_is_left() -> bool:
        return set(await jobs.all(namespace)) == {second.key}

    await until(only_the_second_is_left)
