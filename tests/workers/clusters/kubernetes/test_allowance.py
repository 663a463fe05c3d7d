"""Quotas and limit ranges before admission: a gang that a namespace would refuse waits with the number, whole.

T60 is volcano#3976: members with verdicts of their own while their gang waits.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import Started
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import (
    AT,
    MakeNodes,
    OpenCluster,
    OpenSite,
    Told,
    order_on,
    places,
    until,
)
from tests.workers.clusters.kubernetes.test_cluster import IN_NAME, jobs, pods
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CARDS = "requests.nvidia.com/gpu"


async def set_quota(api: Api, namespace: str, hard: Mapping[str, str], **spec: Any) -> None:
    """A ResourceQuota called `gpus`, once the API server counts it."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    await api.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": dict(hard), **spec}}, at=AT)

    async def is_counted() -> bool:
        return bool((await api.get(f"{path}/gpus")).get("status", {}).get("used"))

    await until(is_counted)


def gang(run_id: str, *, on: str | None = None, state: GangState = GangState.WAITING, **request: Any) -> Gang:
    """One that waits, or one on the first places of a node."""
    asked = GangRequest(**{"devices_per_node": 1, **request})
    placed = Placement(members=(MemberPlacement(node=on, devices=places(on, *range(asked.devices))),)) if on else None
    return Gang(
        run_id=run_id, name=run_id, pool="p", team="default", request=asked, state=state, submitted_at=0.0,
        eligible_at=0.0, attempt=1 if on else 0, placement=placed,
    )  # fmt: skip


def why(told: Told, waiting: Gang, *others: Gang, manifest: Any = None) -> Reason | None:
    gangs = {each.run_id: each for each in (waiting, *others)}
    allowance = told.cluster.allowance(gangs, {waiting.run_id: manifest})
    return allowance.reason(waiting) if allowance is not None else None


@pytest_asyncio.fixture
async def told(make_nodes: MakeNodes, open_cluster: OpenCluster) -> AsyncIterator[Told]:
    """A worker on one node with eight cards."""
    yield await open_cluster(await make_nodes(1), **IN_NAME)


async def test_a_namespace_without_rules_limits_nobody(told: Told) -> None:
    assert why(told, gang("a", devices_per_node=8)) is None


async def test_a_gang_that_a_quota_would_refuse_waits_with_the_quota_and_the_number(
    kubernetes_api: Api, namespace: str, told: Told
) -> None:
    (node,) = [node.name for node in await told.cluster.nodes()]
    await set_quota(kubernetes_api, namespace, {CARDS: "4"})
    order = order_on([node], gpus=3)
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    holder = replace(gang("x", on=node, state=GangState.RUNNING, devices_per_node=3), run_id=order.key.run_id)
    reason = await until(lambda: why(told, gang("a", devices_per_node=2), holder))
    assert reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert reason.text == f"needs 2 GPUs; namespace {namespace}, quota gpus: {CARDS}: 3 of 4 used"
    assert why(told, gang("b"), holder) is None
    urgent = gang("c", devices_per_node=2, priority=50)
    assert why(told, urgent, holder) is None, "whom the planner may evict for it stands in nobody's way"
    for_ever = why(told, gang("d", devices_per_node=5), holder)
    assert for_ever is not None and for_ever.code is ReasonCode.NEVER_FITS
    assert for_ever.text.endswith(f"quota gpus: {CARDS}: 4 in all, 5 needed")
    with pytest.raises(ClusterError, match=f"quota gpus: {CARDS}: 3 of 4 used"):
        await told.cluster.launch(order_on([node], gpus=2, start_timeout_seconds=1.0))
    assert len(await jobs(kubernetes_api, namespace)) == 1


async def test_admissions_whose_pods_do_not_exist_yet_count_and_those_that_leave_do_not(
    kubernetes_api: Api, namespace: str, told: Told
) -> None:
    (node,) = [node.name for node in await told.cluster.nodes()]
    await set_quota(kubernetes_api, namespace, {CARDS: "2"})
    reserved = gang("r", on=node, state=GangState.RESERVED)
    waiting = [gang(name) for name in "ab"]
    urgent = gang("u", devices_per_node=2, priority=9)
    gangs = {each.run_id: each for each in (reserved, *waiting, urgent)}
    allowance = await until(lambda: told.cluster.allowance(gangs, {}))
    there = Placement(members=(MemberPlacement(node=node, devices=places(node, 5)),))
    assert allowance.take(waiting[0], there, set()) and not allowance.take(waiting[1], there, set())
    two = Placement(members=(MemberPlacement(node=node, devices=places(node, 0, 6)),))
    assert not allowance.take(urgent, two, set())
    again = told.cluster.allowance(gangs, {})
    reason = again.reason(urgent)
    assert reason is not None and reason.code is ReasonCode.WAITS_FOR_QUOTA, "the planner evicts nobody for it"
    assert again.take(urgent, two, {"r"})


async def test_a_limit_range_that_would_refuse_the_pods_gives_one_line(
    kubernetes_api: Api, namespace: str, told: Told
) -> None:
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    most = {"type": "Pod", "max": {"nvidia.com/gpu": "4"}}
    await kubernetes_api.create(path, {"metadata": {"name": "small"}, "spec": {"limits": [most]}}, at=AT)
    reason = await until(lambda: why(told, gang("a", devices_per_node=8)))
    assert reason.code is ReasonCode.NEVER_FITS
    assert reason.text == (
        f"namespace {namespace}: limit range small allows a pod at most 4 nvidia.com/gpu, and 8 are asked for"
    )
    assert why(told, gang("b", devices_per_node=4)) is None


async def test_the_namespace_and_the_requests_of_the_pools_own_job_count(
    kubernetes_api: Api, namespace: str, told: Told
) -> None:
    other = f"{namespace}-other"
    await kubernetes_api.create("/api/v1/namespaces", {"metadata": {"name": other}}, at=AT)
    try:
        await set_quota(kubernetes_api, other, {"requests.cpu": "4"})
        container: dict[str, Any] = {"resources": {"requests": {"cpu": "3"}}}
        template = {"spec": {"containers": [container]}}
        manifest = {"metadata": {"namespace": other}, "spec": {"template": template}}
        reason = await until(lambda: why(told, gang("a", nodes=2), manifest=manifest))
        assert reason.text.endswith(f"namespace {other}, quota gpus: requests.cpu: 4 in all, 6 needed")
        silent = why(told, gang("b"), manifest={"metadata": {"namespace": other}})
        assert silent is not None and "quota gpus wants every pod to say requests.cpu" in silent.text
        assert why(told, gang("c"), manifest=manifest) is None
    finally:
        await kubernetes_api.delete(f"/api/v1/namespaces/{other}", at=AT)


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site(1, gpus=4)


async def test_t60_a_run_waits_for_its_namespaces_quota_without_a_pod_and_starts_when_it_is_free(
    site: Site, kubernetes_api: Api, namespace: str
) -> None:
    notes = site.home / "notes"
    await set_quota(kubernetes_api, namespace, {CARDS: "2"})
    deploy(site, "train", nodes=1, devices_per_node=2, grace=120)
    deploy(site, "urgent", nodes=1, devices_per_node=1)
    site.start_worker()
    parameters = {"steps": 150, "store": str(site.home / "store"), "notes": str(notes)}
    first = site.submit("train", parameters=parameters)
    site.wait("its first steps", lambda: len(steps_of(notes, 1)) > 3, seconds=PATIENCE_SECONDS)
    second = site.submit("urgent", parameters={"notes": str(notes)})
    waits = site.wait("its reason", lambda: (g := site.gang(second)) and g.reason_code and g, seconds=PATIENCE_SECONDS)
    assert (waits.reason_code, waits.state) == ("waits-for-quota", GangState.WAITING)
    assert f"quota gpus: {CARDS}: 2 of 2 used" in waits.reason
    (labels,) = [pod["metadata"]["labels"] for pod in await pods(kubernetes_api, namespace)]
    assert labels["dsec.io/run-id"] == labels["prefect.io/flow-run-id"] == first and labels["dsec.io/team"] == "default"
    for run in (first, second):
        site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    ended = site.wait_gang(second, GangState.ENDED)
    assert (ended.attempt, ended.infrastructure_restarts) == (1, 0), "no start was tried in vain"
