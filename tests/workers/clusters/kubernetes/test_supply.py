"""What nodes have left beside their cards, as plan() is told."""

from typing import Any

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.devices import Health
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import LaunchOrder
from tests.workers.clusters.kubernetes.conftest import order_on
from tests.workers.clusters.kubernetes.test_node_model import node
from tests.workers.clusters.kubernetes.test_occupancy import container, pod
from tests.workers.scheduling.world import admitted, cluster, decide, waiting, why

GIB = 2**30
SETTINGS = KubernetesSettings(pool="gpus")


def supply_of(*nodes: str) -> Supply:
    supply = Supply(SETTINGS, clock=SystemClock())
    for name in nodes:
        supply.node_changed(None, node(name))
    return supply


def free(supply: Supply) -> list[float | None]:
    return [each.cpus for each in supply.nodes()]


def pod_of(order: LaunchOrder, template: dict[str, Any]) -> dict[str, Any]:
    (job,) = jobs_of(order, SETTINGS, namespace="team", template=template)
    made = job["spec"]["template"]
    return {**made, "metadata": {**made["metadata"], "name": "p", "namespace": "team", "uid": "1"}}


def test_a_gang_is_not_sent_to_a_node_whose_processors_foreign_pods_have() -> None:
    supply = supply_of("n1", "n2")
    foreign = pod(container(cpu="6500m"), node="n1")
    supply.pod_changed(None, foreign)
    assert free(supply) == [1.5, 8.0]
    queue = [waiting(f"r{number}", cpus=4.0) for number in range(3)]
    decision = decide(cluster(supply.nodes()), *queue)
    assert sorted(admitted(decision).values()) == [["n2"], ["n2"]] and len(why(decision)) == 1
    supply.pod_changed(foreign, {**foreign, "status": {"phase": "Succeeded"}})
    assert free(supply) == [8.0, 8.0]


def test_memory_counts_like_processors_and_what_a_node_does_not_say_is_not_counted() -> None:
    supply = supply_of("n1")
    (found,) = supply.nodes()
    assert found.memory_bytes is None
    told = node("n1")
    told["status"]["allocatable"]["memory"] = "32Gi"
    supply.node_changed(None, told)
    hungry = container()
    hungry["resources"]["requests"]["memory"] = "40Gi"
    supply.pod_changed(None, pod({**hungry, "resources": {"requests": {"memory": "8Gi"}}}))
    assert [each.memory_bytes for each in supply.nodes()] == [24 * GIB]
    supply.pod_changed(None, pod(hungry, name="q"))
    assert [each.memory_bytes for each in supply.nodes()] == [0], "never less than nothing"


def test_our_own_gangs_take_from_a_node_only_what_their_requests_do_not_say() -> None:
    supply, order = supply_of("n1"), order_on(["n1"])
    sidecar = {"name": "logs", "resources": {"requests": {"cpu": "250m"}}}
    template = {"spec": {"template": {"spec": {"containers": [{}, sidecar]}}}}
    mine = pod_of(order, template)
    supply.hold(order.key, order.placement.members[0])
    supply.pod_changed(None, mine)
    assert free(supply) == [7.75]
    running = {**mine, "status": {"phase": "Running"}}
    supply.pod_changed(mine, running)
    assert free(supply) == [7.75]
    supply.pod_changed(running, {**mine, "status": {"phase": "Succeeded"}})
    assert free(supply) == [8.0]
    supply.pod_changed(running, None)
    assert free(supply) == [8.0]


def test_a_node_is_the_same_object_until_something_changes_what_it_offers() -> None:
    supply = supply_of("n1")
    (before,) = supply.nodes()
    order = order_on(["n1"])
    key, (member,) = order.key, order.placement.members
    mine = {**pod_of(order, {}), "spec": {**pod_of(order, {})["spec"], "nodeName": "n1"}}
    supply.hold(key, member)
    supply.pod_changed(None, mine)
    assert supply.nodes()[0] is before, "what our gangs take the ledger knows"
    foreign = pod(container(gpus=1), node="n1", name="foreign")
    supply.pod_changed(None, foreign)
    (closed,) = supply.nodes()
    assert [device.health for device in closed.devices].count(Health.FROZEN) == 1
    supply.pod_changed(foreign, None)
    supply.let_go(key, member)
    supply.pod_changed(mine, None)
    assert supply.nodes() == (before,)
