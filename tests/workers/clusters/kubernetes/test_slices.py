"""Cards that are cut, on the real API server: what nodes offer is what `plan()` places, and what the pods ask for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dsec_blocks.model.requests import GangRequest, parse_request
from dsec_blocks.model.teams import Team
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.protocol import GangKey, LaunchOrder, Started
from dsec_workers.scheduling import plan
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, build_snapshot
from tests.workers.clusters.kubernetes.conftest import MakeNodes, OpenCluster, Told
from tests.workers.clusters.kubernetes.test_cluster import IN_NAME, pods_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MIG = {"nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 1}
NOW = 1_000_000.0


async def planned(told: Told, *requests: GangRequest) -> Any:
    """What `plan()` makes of these requests on the cluster as the adapter sees it."""
    queue = [
        QueuedGang(run_id=f"run-{number}", team="default", request=request, submitted_at=NOW, eligible_at=NOW)
        for number, request in enumerate(requests)
    ]
    teams = {"default": Team(name="default", nominal_devices=100)}
    snapshot = build_snapshot(pool="p", nodes=await told.cluster.nodes(), running=(), teams=teams)
    return plan(snapshot, queue, Policy(), NOW + 1)


async def starts(told: Told, run_id: str, request: GangRequest, placement: Any) -> LaunchOrder:
    order = LaunchOrder(key=GangKey(run_id, 1), name="a-run", request=request, placement=placement, env={})
    await told.cluster.launch(order)
    await told.until(order.key, Started)
    return order


def asked_for(pods: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]


@pytest.mark.parametrize(
    ("share", "resource"),
    [("1g.10gb", "nvidia.com/mig-1g.10gb"), ("3g.40gb", "nvidia.com/mig-3g.40gb"), ("0.4", "nvidia.com/mig-3g.40gb")],
)
async def test_a_gang_that_asks_for_a_slice_gets_it_and_its_pod_asks_for_nothing_else(
    kubernetes_api: Api,
    namespace: str,
    make_nodes: MakeNodes,
    open_cluster: OpenCluster,
    share: str,
    resource: str,
) -> None:
    nodes = [*await make_nodes(1, gpus=8), *await make_nodes(1, gpus=0, resources=MIG)]
    told = await open_cluster(nodes, **IN_NAME)
    request = parse_request({"devices_per_node": 1, "share": share})
    (admit,) = (await planned(told, request)).admits
    assert [member.node for member in admit.placement.members] == nodes[1:]
    await starts(told, f"{namespace}-s", request, admit.placement)
    assert asked_for(await pods_of(kubernetes_api, namespace, 1)) == [{resource: "1"}]


async def test_slices_are_given_out_one_by_one_and_whole_cards_to_whoever_asks_for_whole_cards(
    make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    cut, whole = *await make_nodes(1, gpus=0, resources=MIG), *await make_nodes(1, gpus=1)
    told = await open_cluster([cut, whole], **IN_NAME)
    small, card = parse_request({"devices_per_node": 1, "share": "1g.10gb"}), parse_request({"devices_per_node": 1})
    found = await planned(told, *[small] * 5, *[card] * 2)
    admitted = {admit.run_id: admit.placement.devices[0] for admit in found.admits}
    assert sorted(admitted.values()) == sorted(
        [f"{whole}/nvidia.com/gpu/0", *(f"{cut}/nvidia.com/mig-1g.10gb/{index}" for index in range(4))]
    )
    held = {hold.run_id: hold.reason.text for hold in found.holds}
    assert held.keys() == {"run-4", "run-6"} and "1 × 1g.10gb of GPU" in held["run-4"]


async def test_a_profile_that_no_card_is_cut_into_is_told_with_those_there_are(
    make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    told = await open_cluster(await make_nodes(1, gpus=1, resources=MIG), **IN_NAME)
    (hold,) = (await planned(told, parse_request({"devices_per_node": 1, "share": "2g.20gb"}))).holds
    assert hold.reason.text == "needs 1 × 2g.20gb of GPU; GPUs here are cut into 1g.10gb, 3g.40gb"


async def test_parts_of_a_cards_time_are_asked_for_by_the_name_under_which_the_node_offers_them(
    kubernetes_api: Api, namespace: str, make_nodes: MakeNodes, open_cluster: OpenCluster
) -> None:
    shared = {"nvidia.com/gpu.shared": 8}
    nodes = await make_nodes(1, gpus=0, resources=shared, labels={"nvidia.com/gpu.replicas": "4"})
    told = await open_cluster(nodes, **IN_NAME)
    request = parse_request({"devices_per_node": 1, "share": "25%", "sharing": "time-slice"})
    (admit,) = (await planned(told, request)).admits
    await starts(told, f"{namespace}-t", request, admit.placement)
    assert asked_for(await pods_of(kubernetes_api, namespace, 1)) == [{"nvidia.com/gpu.shared": "1"}]
    too_much = (await planned(told, parse_request({"devices_per_node": 1, "share": "0.5"}))).holds
    assert [hold.reason.text for hold in too_much] == ["needs 1 × 0.5 of GPU; GPUs here are cut into 1/4"]
