"""Nodes that somebody empties while gangs train on them: by `kubectl drain`, a taint, or `dsec drain`.

T20 is KAI#1579: evictions past a disruption budget.
"""

from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import NotFound, Overloaded
from dsec_workers.clusters.protocol import Committed, GangKey, Gone, LaunchOrder, Started
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import AT, GRACE_SECONDS, OpenCluster, OpenSite, Told, order_on, until
from tests.workers.clusters.kubernetes.test_cluster import pods, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_disturbances import progress
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy, steps_of
from tests.workers.clusters.kubernetes.test_in_pods import flow
from tests.workers.clusters.kubernetes.test_outposts import TRAINS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def evict(api: Api, pod: dict[str, Any]) -> None:
    """One pod, as `kubectl drain` does it: a disruption budget may refuse, which is said at once."""
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    await api._once("POST", path, body=body, query={}, content_type="application/json")


async def cordon(api: Api, node: str, *, closed: bool = True) -> None:
    await api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": closed or None}}, at=AT)


async def drain(api: Api, namespace: str, node: str) -> None:
    """`kubectl drain NODE`: cordon it, evict what is there, wait until that has left."""
    await cordon(api, node)
    there = [pod for pod in await pods(api, namespace) if pod["spec"]["nodeName"] == node]
    assert there
    for pod in there:
        await evict(api, pod)

    async def has_left(uid: str) -> bool:
        return uid not in {pod["metadata"]["uid"] for pod in await pods(api, namespace)}

    for pod in there:
        await until(lambda uid=pod["metadata"]["uid"]: has_left(uid))


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site(3)


def nodes_of(site: Site, run: str) -> set[str]:
    """Where the run's gang is."""
    gang = site.gang(run)
    return {member.node for member in gang.placement.members} if gang is not None and gang.placement else set()


async def test_a_gang_on_a_drained_node_checkpoints_goes_on_elsewhere_and_loses_no_step(
    site: Site, kubernetes_api: Api, namespace: str
) -> None:
    steps, notes = 240, site.home / "notes"
    deploy(site, "train", nodes=2, devices_per_node=2, grace=120)
    site.start_worker()
    parameters = {"steps": steps, "store": str(site.home / "store"), "notes": str(notes)}
    run = site.submit("train", parameters=parameters)

    def trains(attempt: int) -> bool:
        return sum(told >= attempt for told, _, _ in steps_of(notes, 3)) > 10

    site.wait("its first steps", lambda: trains(1), seconds=PATIENCE_SECONDS)
    (spared,) = {f"{namespace}-{letter}" for letter in "abc"} - nodes_of(site, run)
    first = sorted(nodes_of(site, run))
    await drain(kubernetes_api, namespace, first[1])
    site.wait("its steps on other nodes", lambda: trains(2), seconds=PATIENCE_SECONDS)
    assert nodes_of(site, run) == {first[0], spared}
    assert site.gang(run).attempt == 2, "it was not sent back to the node that it had to leave"
    told = next(message for message in site.messages(run) if "resumes from step" in message)
    assert told.startswith(f"Its pod on {first[1]} was told to leave (EvictionByEvictionAPI: ")
    # And the other way to empty a node: an operator's wish, which no disruption budget can refuse.
    await cordon(kubernetes_api, first[1], closed=False)
    site.ledger.wish(site.pool, "drain", None, {"node": spared}, by="ops", why="its fan")
    site.wait("its steps where it began", lambda: trains(3), seconds=PATIENCE_SECONDS)
    assert nodes_of(site, run) == set(first)
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    for rank in range(4):
        assert [step for _, step, _ in steps_of(notes, rank)] == list(range(steps)), "no step was lost or done twice"
    gang = site.wait_gang(run, GangState.ENDED)
    assert (gang.evictions, gang.infrastructure_restarts) == (2, 0), "a drain costs the user no retry"
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)


async def training(told: Told, nodes: list[str], folder: Path) -> LaunchOrder:
    """A gang that has trained a few steps on these nodes."""
    order = flow(order_on(nodes, gpus=2), folder, TRAINS, STORE=str(folder / "store"))
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    await until(lambda: progress(told, order.key) > 5)
    return order


def has_lost_nothing(told: Told, key: GangKey, gone: Gone) -> bool:
    """Whether the gang's last word is a checkpoint of all that it had done."""
    committed = [event.step for event in told.events[key] if isinstance(event, Committed)]
    return bool(committed) and gone.last_commit_step == committed[-1] >= progress(told, key) > 5


async def test_a_taint_that_moves_pods_away_lets_the_whole_gang_checkpoint_and_leave(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    told = await open_cluster(two_nodes)
    order = await training(told, two_nodes, tmp_path)
    taint = {"key": "example.com/maintenance", "value": "tonight", "effect": "NoExecute"}
    await kubernetes_api.merge(f"/api/v1/nodes/{two_nodes[1]}", {"spec": {"taints": [taint]}}, at=AT)
    gone = await told.until(order.key, Gone)
    assert gone.notice == "drain" and has_lost_nothing(told, order.key, gone)
    assert gone.reason and gone.reason.startswith(f"Its pod on {two_nodes[1]} was told to leave (DeletionByTaintManag")


async def test_t20_a_disruption_budget_refuses_the_eviction_and_a_drain_by_dsec_needs_none(
    kubernetes_api: Api, namespace: str, two_nodes: list[str], open_cluster: OpenCluster, tmp_path: Path
) -> None:
    told = await open_cluster(two_nodes)
    order = await training(told, two_nodes, tmp_path)
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"dsec.io/run-id": order.key.run_id}}
    # A number of pods: Jobs have no scale from which a share, or maxUnavailable, could follow.
    budget = {"metadata": {"name": "gangs"}, "spec": {"minAvailable": 2, "selector": selector}}
    await kubernetes_api.create(budgets, budget, at=AT)
    pod = (await pods(kubernetes_api, namespace))[0]

    async def is_refused() -> bool:
        try:
            await evict(kubernetes_api, pod)
        except Overloaded as refused:  # 429, so that who drains asks again
            return "disruption budget" in str(refused)
        except NotFound:
            return False
        raise AssertionError("the pod was evicted in spite of its budget")

    async def is_known() -> bool:
        found = await kubernetes_api.get(f"{budgets}/gangs")
        return (found.get("status") or {}).get("observedGeneration") == 1

    await until(is_known)
    assert await is_refused()
    step = progress(told, order.key)
    await until(lambda: progress(told, order.key) > step + 5)
    deadline = SystemClock().now() + GRACE_SECONDS
    notice = Notice(kind=NoticeKind.DRAIN, reason="an operator drains the node", deadline=deadline, attempt=1)
    await told.cluster.notify(order.key, notice)
    gone = await told.until(order.key, Gone)
    assert gone.notice == "drain" and has_lost_nothing(told, order.key, gone)
